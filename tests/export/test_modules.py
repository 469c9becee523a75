"""Encoders by configuration and weights, and by name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from headwaiter_export.cli import main
from headwaiter_export.config import EncoderConfig
from headwaiter_export.encoder import Encoder
from headwaiter_export.presets import PRESETS
from headwaiter_export.weights import random_encoder as initial_encoder
from headwaiter_export.weights import read_encoder
from headwaiter_server.runtime.bundle import Bundle
from tests.checkpoints import VOCABULARY, save_tokenizer
from tests.export.helpers import assert_close_to_scale, draw, oracle_of, random_encoder, run

pytestmark = pytest.mark.usefixtures("packed_cpu_alone")

SMALL: dict[str, Any] = {"feature_width": 6, "layers": 1, "d_ff": 0, "max_tokens": 12}


def save_module(encoder: Encoder, folder: Path, weights: dict[str, Tensor] | None = None) -> list[str]:
    """Save an encoder as `headwaiter-export module` takes it, and return the command's arguments."""
    (folder / "config.json").write_text(encoder.config.to_json())
    save_file(dict(encoder.state_dict()) if weights is None else weights, folder / "weights.safetensors")
    return ["module", str(folder / "config.json"), str(folder / "weights.safetensors"), "-o", str(folder / "bundle")]


def fused(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same weights with q, k and v of each layer in one tensor."""
    parts = ("query", "key", "value")
    names = {name for name in weights if any(f".attention.{part}." in name for part in parts)}
    whole = {name: tensor for name, tensor in weights.items() if name not in names}
    for name in sorted(names):
        if ".query." in name:
            rows = [weights[name.replace(".query.", f".{part}.")] for part in parts]
            whole[name.replace(".query.", ".qkv.")] = torch.cat(rows)
    return whole


def halved(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same weights, rounded to half precision."""
    return {name: tensor.half() for name, tensor in weights.items()}


def test_a_module_with_a_tokenizer_takes_texts_and_answers_by_its_formula(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {**SMALL, "feature_width": 0, "vocabulary_size": len(VOCABULARY)}
    encoder = random_encoder(**sizes, head_dim=6, value_dim=5)
    save_tokenizer(tmp_path)
    tokenizer = ["--tokenizer", str(tmp_path / "tokenizer.json")]
    assert main([*save_module(encoder, tmp_path), *tokenizer]) == 0
    manifest = Bundle.open(tmp_path / "bundle").manifest
    assert (manifest.name, manifest.max_text_tokens) == ("config", 12)
    sequences = draw(encoder.config, (12, 1, 5))
    outputs = run(tmp_path / "bundle" / "packed-cpu.fp32.onnx", "cpu", sequences)
    assert_close_to_scale(outputs.hidden, np.concatenate([oracle_of(encoder).hidden(each) for each in sequences]))


@pytest.mark.parametrize("give", [dict, fused, halved])
def test_weights_are_taken_as_they_are_given_and_become_float32(
    give: Callable[[dict[str, Tensor]], dict[str, Tensor]], tmp_path: Path
) -> None:
    encoder = random_encoder(**SMALL, head_dim=6, value_dim=5)
    save_file(give(encoder.state_dict()), tmp_path / "weights.safetensors")
    taken = read_encoder(encoder.config, tmp_path / "weights.safetensors").state_dict()
    assert {tensor.dtype for tensor in taken.values()} == {torch.float32}
    for name, tensor in encoder.state_dict().items():
        assert torch.equal(taken[name], tensor.half().float() if give is halved else tensor)


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"colour": 1}, "unknown field 'colour'"),
        ({"heads": 5}, "heads is 5, which does not divide d_model 24: set head_dim"),
    ],
)
def test_a_wrong_configuration_is_one_sentence_that_names_the_file(
    config: dict[str, Any], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    encoder = random_encoder(**SMALL)
    arguments = save_module(encoder, tmp_path)
    given = {**json.loads(encoder.config.to_json()), "head_dim": 0, **config}
    (tmp_path / "config.json").write_text(json.dumps(given))
    assert main(arguments) == 1
    printed = capsys.readouterr().err
    assert printed.startswith(f"headwaiter-export: {tmp_path / 'config.json'}: {complaint}")
    assert printed.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "complaint"),
    [(b'{"d_model": "\xe9"}', "is not JSON: 'utf-8' codec"), (b"[]", "is no JSON object"), (None, "is missing")],
)
def test_a_file_that_is_no_configuration_is_one_sentence(
    content: bytes | None, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.json"
    if content is not None:
        path.write_bytes(content)
    assert main(["module", str(path), "weights.safetensors", "-o", str(tmp_path / "bundle")]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith(f"headwaiter-export: {path} {complaint}")
    assert printed.count("\n") == 1


def test_a_tokenizer_for_features_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_tokenizer(tmp_path)
    tokenizer = ["--tokenizer", str(tmp_path / "tokenizer.json")]
    assert main([*save_module(random_encoder(**SMALL), tmp_path), *tokenizer]) == 1
    assert capsys.readouterr().err == (
        "headwaiter-export: --tokenizer is given, but the encoder takes features: leave it out, or set "
        "vocabulary_size\n"
    )


@pytest.mark.parametrize("seed", ["-1", "x", str(2**63)])
def test_a_seed_that_is_none_is_refused(seed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["preset", "concat-heads", f"--seed={seed}", "-o", str(tmp_path / "bundle")])
    assert f"argument --seed: '{seed}' is no whole number from 0 to 2**63 - 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"layers.0.attention.query.weight": None}, "layers.0.attention.query.weight"),
        ({"layers.0.attention.query.weight": torch.zeros(24, 7)}, "layers.0.attention.query.weight"),
        ({"stranger": torch.zeros(1)}, "stranger"),
        ({"stranger": torch.zeros(1, dtype=torch.int64)}, "tensor stranger of"),
        ({"layers.0.attention.query.weight": torch.full((24, 24), torch.nan)}, "query.weight has a NaN or an infinity"),
        ({"layers.0.attention.qkv.weight": torch.zeros(())}, "qkv.weight has the shape []: by the configuration it mu"),
        ({"layers.0.attention.qkv.weight": torch.zeros(71, 24)}, "it must have 72 rows, those of query, key and value"),
        ({"layers.0.attention.qkv.weight": torch.zeros(72, 24)}, ".weight twice, alone and in qkv: leave one out"),
    ],
)
def test_wrong_weights_are_one_sentence_that_names_the_tensor(
    change: dict[str, Tensor | None], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    encoder = random_encoder(**SMALL)
    changed = {**encoder.state_dict(), **change}
    weights = {name: tensor for name, tensor in changed.items() if tensor is not None}
    assert main(save_module(encoder, tmp_path, weights)) == 1
    printed = capsys.readouterr().err
    assert complaint in printed
    assert printed.count("\n") == 1


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_takes_every_field_and_survives_json(name: str) -> None:
    config = PRESETS[name]({"heads": 2, "d_model": 32, "max_tokens": 20, "pooling": "mean", "layers": 1})
    assert (config.heads, config.d_model, config.max_tokens, config.pooling) == (2, 32, 20, "mean")
    assert config.layers == 1
    assert EncoderConfig.from_json(config.to_json()) == config


def test_a_vit_block_drops_its_projection_where_one_head_has_the_models_width() -> None:
    vit_block = PRESETS["vit-block"]
    assert vit_block({"d_model": 96}).head_dim == 64
    assert vit_block({"d_model": 64, "heads": 1}).output_projection is False
    assert vit_block({"d_model": 64, "heads": 2}).output_projection is True
    assert vit_block({"d_model": 96, "heads": 1}).output_projection is True


def test_projected_heads_go_from_one_width_to_another() -> None:
    config = PRESETS["projected-heads"]({"d_model": 10, "heads": 2, "head_dim": 4, "value_dim": 7})
    assert (config.feature_width, config.width) == (10, 14)
    assert (config.query_bias, config.key_bias, config.value_bias) == (True, True, True)
    assert PRESETS["projected-heads"]({"positions": "rotary"}).positions == "rotary"


def test_a_preset_is_exported_with_random_weights_the_same_for_the_same_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--set", "d_model=16", "--set", "heads=2", "--set", "max_tokens=8", "--set", "mask=none"]
    assert main(["preset", "masked-heads", *sizes, "--seed", "3", "-o", str(tmp_path / "bundle")]) == 0
    assert "the weights are random, from seed 3\n" in capsys.readouterr().out
    config = PRESETS["masked-heads"]({"d_model": 16, "heads": 2, "max_tokens": 8, "mask": "none"})
    sequences = draw(config, (5, 3))
    hidden = run(tmp_path / "bundle" / "packed-cpu.fp32.onnx", "cpu", sequences).hidden
    same, other = (
        np.concatenate([oracle_of(initial_encoder(config, seed)).hidden(each) for each in sequences]) for seed in (3, 4)
    )
    assert_close_to_scale(hidden, same)
    assert hidden is not None
    assert np.abs(hidden - other).max() > 0.01


@pytest.mark.parametrize(
    ("choice", "status", "complaint"),
    [
        ("heads=3", 1, "headwaiter-export: heads is 3, which does not divide d_model 64: set head_dim\n"),
        ("d_model=null", 1, "headwaiter-export: d_model is None: it must be a whole number from 1 to 16777216\n"),
        ("max_tokens=100000000000", 1, "headwaiter-export: max_tokens is 100000000000: it must be a whole number from"),
        ("head=3", 1, "headwaiter-export: unknown field 'head': "),
        ("positions=alibi", 1, "headwaiter-export: positions is 'alibi': choose one of "),
        ("heads", 2, "'heads' is not of the form FIELD=VALUE, such as heads=8"),
    ],
)
def test_a_wrong_choice_is_named(
    choice: str, status: int, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        ended = main(["preset", "concat-heads", "--set", choice, "-o", str(tmp_path / "bundle")])
    except SystemExit as error:
        ended = int(error.code or 0)
    assert ended == status
    assert complaint in capsys.readouterr().err
