"""The export compares a family's encoder with transformers, and refuses a checkpoint that the encoder misreads."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from headwaiter_export.bundle.atomic_folder import BundleError
from headwaiter_export.bundle.export import export_model
from headwaiter_export.bundle.graphs import chosen_plans
from headwaiter_export.bundle.own_code import compare_with_library
from headwaiter_export.checkpoints.reader import LoadedModel, read_checkpoint
from headwaiter_export.config.choices import Pooling
from headwaiter_export.encoder.reference import Reference
from tests.support.export.family_examples import EXAMPLES, Example

BY_LABEL = {example.label: example for example in EXAMPLES}
# Layouts of code that transformers lacks, and a type that it loads under another name only.
UNREADABLE = ("layout of its code", "SigLIP (texts)")


def saved(example: Example, folder: Path) -> LoadedModel:
    example.save_in(folder)
    return read_checkpoint(folder, None if example.takes_features else Pooling.MEAN)


def compared(model: LoadedModel) -> str:
    assert model.library_rows is not None
    return compare_with_library(model.library_rows, Reference.compute(model.encoder))


@pytest.mark.usefixtures("runs_graphs")
def test_the_export_reports_the_difference_and_ends_if_it_is_too_large(tmp_path: Path) -> None:
    model, lines = saved(BY_LABEL["BERT"], tmp_path), list[str]()
    export = partial(export_model, lambda: model, report=lines.append, plans=chosen_plans(["packed-cpu"], ["fp32"]))
    export(tmp_path / "bundle", "a")
    assert sum(line.startswith("largest difference from transformers: ") for line in lines) == 1
    with torch.no_grad():
        next(model.encoder.parameters()).mul_(1.01)
    with pytest.raises(BundleError):
        export(tmp_path / "other", "a")
    assert not (tmp_path / "other").exists()


# As if the encoder had read another value than transformers.
@pytest.mark.parametrize("changed", [{"hidden_act": "gelu_new"}, {"layer_norm_eps": 1e-3}], ids=str)
def test_a_setting_that_the_encoder_misreads_is_found(changed: dict[str, Any], tmp_path: Path) -> None:
    model, path = saved(BY_LABEL["BERT"], tmp_path), tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    with pytest.raises(BundleError, match="transformers"):
        compared(model)


@pytest.mark.parametrize("label", ["ESM-1b (proteins)", "T5 (encoder, or a head)", "DeBERTa v3"])
def test_rows_without_a_number_and_encoders_with_a_decoder_are_no_obstacle(label: str, tmp_path: Path) -> None:
    assert compared(saved(BY_LABEL[label], tmp_path)).startswith("largest difference from transformers: ")


def test_a_checkpoint_that_transformers_cannot_read_is_exported_without_the_comparison(tmp_path: Path) -> None:
    assert compared(saved(BY_LABEL["GTE, layout of its code"], tmp_path)).startswith("not compared with transformers")


@pytest.mark.parametrize("label", ["ViT", "BART", "wav2vec 2.0"])
def test_rows_that_mean_something_else_are_not_compared(label: str, tmp_path: Path) -> None:
    assert saved(BY_LABEL[label], tmp_path).library_rows is None


@pytest.mark.exhaustive
@pytest.mark.parametrize("example", [pytest.param(each, id=each.label) for each in EXAMPLES if not each.takes_features])
def test_each_family_agrees_with_transformers(example: Example, tmp_path: Path) -> None:
    model = saved(example, tmp_path)
    if model.library_rows is not None:
        unreadable = example.label.endswith(UNREADABLE)
        assert compared(model).startswith("not compared" if unreadable else "largest difference from transformers: ")
