"""A field of config.json that transformers reads under two names has one value, or the export refuses it."""

import json
from pathlib import Path

import pytest
import transformers

from headwaiter_export.checkpoints.reader import read_checkpoint
from tests.support.export.family_checkpoints import assert_equals_transformers
from tests.support.export.family_examples import save_example
from tests.support.export.feature_checkpoints import save_feature_model
from tests.support.export.helpers import assert_checkpoint_refused, edit_json
from tests.support.export.hub_checkpoints import save_nomic


def save(folder: Path, name: str) -> transformers.PreTrainedModel:
    return save_feature_model(folder, name) if name == "Whisper" else save_example(folder, name)


@pytest.mark.parametrize(
    ("name", "alias", "field"),
    [
        ("DistilBert", "num_hidden_layers", "n_layers"),
        ("DistilBert", "num_attention_heads", "n_heads"),
        ("DistilBert", "hidden_size", "dim"),
        ("T5", "num_hidden_layers", "num_layers"),
        ("T5", "num_attention_heads", "num_heads"),
        ("T5", "head_dim", "d_kv"),
        ("Whisper", "num_key_value_heads", "encoder_attention_heads"),
        ("Whisper", "num_hidden_layers", "encoder_layers"),
    ],
)
def test_two_values_of_one_field_are_refused(name: str, alias: str, field: str, tmp_path: Path) -> None:
    model = save(tmp_path, name)
    value = getattr(model.config, field)
    edit_json(tmp_path / "config.json", **{alias: value})
    read_checkpoint(tmp_path)
    edit_json(tmp_path / "config.json", **{alias: value // 2})
    # transformers takes the alias.
    assert getattr(transformers.AutoConfig.from_pretrained(tmp_path), field) == value // 2
    assert_checkpoint_refused(tmp_path, f"{alias} {value // 2}", f"{field}, {value}")


@pytest.mark.parametrize("alias", ["num_hidden_layers", "num_attention_heads", "hidden_size"])
def test_an_alias_alone_is_the_field(alias: str, tmp_path: Path) -> None:
    model = save(tmp_path, "DistilBert")
    path = tmp_path / "config.json"
    values = json.loads(path.read_text())
    values[alias] = values.pop(model.config.attribute_map[alias])
    path.write_text(json.dumps(values))
    assert_equals_transformers(read_checkpoint(tmp_path).encoder, model, (1, 24))


@pytest.mark.parametrize(("alias", "value"), [("hidden_size", 16), ("num_hidden_layers", 1)])
def test_two_values_of_one_field_of_the_code_of_nomic_bert_are_refused(alias: str, value: int, tmp_path: Path) -> None:
    save_nomic(tmp_path, **{alias: value})
    assert_checkpoint_refused(tmp_path, f"{alias} {value}")
