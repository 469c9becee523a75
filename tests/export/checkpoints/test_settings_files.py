"""The files of settings that sentence-transformers reads count, and no others."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headwaiter_export.checkpoints.reader import read_checkpoint
from tests.support.checkpoints import write_json
from tests.support.export.compared_models import expected_text_vectors, save_embedder, text_vectors
from tests.support.export.helpers import assert_checkpoint_refused, assert_close, edit_json
from tests.support.tiers import exhaustive

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize(
    "files",
    [
        {"sentence_bert_config.json": {}, "sentence_roberta_config.json": {"max_seq_length": 9}},
        {
            "sentence_xlnet_config.json": {"max_seq_length": 9},
            "sentence_xlm-roberta_config.json": {"max_seq_length": 7},
        },
        {"sentence_mpnet_config.json": {"max_seq_length": 9}},
        *exhaustive(
            {},
            {"sentence_bert_config.json": {}},
            {"sentence_camembert_config.json": {"max_seq_length": 9}, "sentence_albert_config.json": []},
            {"sentence_distilbert_config.json": {"do_lower_case": True}, "sentence_mpnet_config.json": []},
        ),
    ],
)
def test_the_first_file_with_fields_counts(files: dict[str, Any], tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    save_embedder(tmp_path)
    (tmp_path / "sentence_bert_config.json").unlink()
    for name, content in files.items():
        write_json(tmp_path / name, content)
    text = read_checkpoint(tmp_path).text
    assert text is not None
    assert text.max_tokens == SentenceTransformer(str(tmp_path), device="cpu").max_seq_length
    for one, other in zip(text_vectors(tmp_path), expected_text_vectors("SentenceTransformer")(tmp_path), strict=True):
        assert_close(one, other)


def test_settings_beside_a_transformer_without_modules_are_not_read(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    save_embedder(tmp_path)
    (tmp_path / "modules.json").unlink()
    edit_json(tmp_path / "sentence_bert_config.json", do_lower_case=True)
    text = read_checkpoint(tmp_path).text
    assert text is not None
    assert text.max_tokens == SentenceTransformer(str(tmp_path), device="cpu").max_seq_length == 40
    assert text.prompts == ()


@pytest.mark.parametrize(
    ("field", "value"),
    [("truncation_side", "left"), *exhaustive(("model_max_length", 5), ("do_lower_case", False))],
)
def test_a_setting_among_special_tokens_is_refused(field: str, value: Any, tmp_path: Path) -> None:
    """The settings of special_tokens_map.json count in transformers."""
    expected = expected_text_vectors("SentenceTransformer")
    save_embedder(tmp_path)
    limit = None if field.startswith(("model", "max")) else 9
    edit_json(tmp_path / "sentence_bert_config.json", max_seq_length=limit)
    write_json(tmp_path / "special_tokens_map.json", {"cls_token": "[CLS]"})
    without = expected(tmp_path)
    for one, other in zip(text_vectors(tmp_path), without, strict=True):
        assert_close(one, other)
    edit_json(tmp_path / "special_tokens_map.json", **{field: value})
    assert not all(map(np.allclose, expected(tmp_path), without))
    assert_checkpoint_refused(tmp_path, "special_tokens_map.json", f"{field} {value!r}")
    edit_json(tmp_path / "special_tokens_map.json", **{field: None})
    assert_checkpoint_refused(tmp_path, "special_tokens_map.json", f"{field} None")
    # With this field, transformers does not read the file.
    edit_json(tmp_path / "tokenizer_config.json", added_tokens_decoder={})
    for one, other in zip(text_vectors(tmp_path), expected(tmp_path), strict=True):
        assert_close(one, other)
