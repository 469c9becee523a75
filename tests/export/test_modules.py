"""The commands `module` and `preset` export encoders from a configuration and weights, or from a name."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from headwaiter_export.checkpoints.weights import random_encoder as initial_encoder
from headwaiter_export.checkpoints.weights import read_encoder
from headwaiter_export.cli import main
from headwaiter_export.config.choices import DecoderInput
from headwaiter_export.config.decoder import DecoderConfig
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.config.presets import PRESETS
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_server.runtime.bundle import Bundle
from tests.export.conftest import Refused
from tests.support.checkpoints import VOCABULARY, save_tokenizer
from tests.support.export.helpers import assert_close_to_scale, oracle_of, random_encoder, random_sequences, run_graph

pytestmark = pytest.mark.usefixtures("packed_cpu_alone")

QUERY, QKV = "layers.0.attention.query.weight", "layers.0.attention.qkv.weight"
SMALL: dict[str, Any] = {"feature_width": 6, "layers": 1, "d_ff": 0, "max_tokens": 12}


def save_module(encoder: Encoder, folder: Path, weights: dict[str, Tensor] | None = None) -> list[str]:
    """Save an encoder for `headwaiter-export module`, and return the command's arguments but for the bundle."""
    (folder / "config.json").write_text(json.dumps(asdict(encoder.config)))
    save_file(dict(encoder.state_dict()) if weights is None else weights, folder / "weights.safetensors")
    return ["module", str(folder / "config.json"), str(folder / "weights.safetensors")]


def fuse_qkv(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Put q, k and v of each layer into one tensor."""
    parts = ("query", "key", "value")
    names = {name for name in weights if any(f".attention.{part}." in name for part in parts)}
    fused = {name: tensor for name, tensor in weights.items() if name not in names}
    for name in sorted(names):
        if ".query." in name:
            rows = [weights[name.replace(".query.", f".{part}.")] for part in parts]
            fused[name.replace(".query.", ".qkv.")] = torch.cat(rows)
    return fused


def to_half(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Round weights to half precision."""
    return {name: tensor.half() for name, tensor in weights.items()}


@pytest.mark.usefixtures("runs_graphs")
def test_a_module_with_a_tokenizer_accepts_texts_and_equals_its_formula(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {**SMALL, "feature_width": 0, "vocabulary_size": len(VOCABULARY)}
    encoder = random_encoder(**sizes, head_dim=6, value_dim=5)
    save_tokenizer(tmp_path)
    flags = ["--tokenizer", str(tmp_path / "tokenizer.json"), "-o", str(tmp_path / "bundle")]
    assert main([*save_module(encoder, tmp_path), *flags]) == 0
    manifest = Bundle.open(tmp_path / "bundle").manifest
    assert (manifest.name, manifest.max_text_tokens) == ("config", 12)
    sequences = random_sequences(encoder.config, (12, 1, 5))
    outputs = run_graph(tmp_path / "bundle" / "packed-cpu.fp32.onnx", "cpu", sequences)
    assert_close_to_scale(outputs.hidden, np.concatenate([oracle_of(encoder).hidden(each) for each in sequences]))


@pytest.mark.parametrize("convert", [dict, fuse_qkv, to_half])
def test_fused_and_half_precision_weights_become_separate_float32_weights(
    convert: Callable[[dict[str, Tensor]], dict[str, Tensor]], tmp_path: Path
) -> None:
    encoder = random_encoder(**SMALL, head_dim=6, value_dim=5)
    save_file(convert(encoder.state_dict()), tmp_path / "weights.safetensors")
    taken = read_encoder(encoder.config, tmp_path / "weights.safetensors").state_dict()
    assert {tensor.dtype for tensor in taken.values()} == {torch.float32}
    for name, tensor in encoder.state_dict().items():
        assert torch.equal(taken[name], tensor.half().float() if convert is to_half else tensor)


@pytest.mark.parametrize(
    ("config", "facts"),
    [({"colour": 1}, ["'colour'"]), ({"heads": 5}, ["heads is 5", "d_model 24", "head_dim"])],
)
def test_an_error_in_a_configuration_is_one_line_with_the_file_and_the_field(
    config: dict[str, Any], facts: list[str], tmp_path: Path, refused: Refused
) -> None:
    encoder = random_encoder(**SMALL)
    arguments = save_module(encoder, tmp_path)
    given = {**json.loads(json.dumps(asdict(encoder.config))), "head_dim": 0, **config}
    (tmp_path / "config.json").write_text(json.dumps(given))
    refused(arguments, str(tmp_path / "config.json"), *facts)


@pytest.mark.parametrize(
    ("content", "fact"),
    [(b'{"d_model": "\xe9"}', "utf-8"), (b"{", "JSON"), (b"[]", "object"), (None, "missing")],
)
def test_an_error_in_a_file_that_is_not_a_configuration_is_one_line(
    content: bytes | None, fact: str, tmp_path: Path, refused: Refused
) -> None:
    path = tmp_path / "config.json"
    if content is not None:
        path.write_bytes(content)
    refused(["module", path, "weights.safetensors"], str(path), fact)


TARGET = DecoderConfig(layers=1, d_ff=8, input=DecoderInput.TARGET, start_id=2)


@pytest.mark.parametrize(
    ("choices", "facts"),
    [
        ({}, ["features", "vocabulary_size"]),
        ({"feature_width": 0, "vocabulary_size": 50, "pooling": "none", "decoder": TARGET}, ["target"]),
    ],
)
def test_a_tokenizer_without_texts_is_refused(
    choices: dict[str, Any], facts: list[str], tmp_path: Path, refused: Refused
) -> None:
    save_tokenizer(tmp_path)
    arguments = save_module(random_encoder(**{**SMALL, **choices}), tmp_path)
    refused([*arguments, "--tokenizer", tmp_path / "tokenizer.json"], "--tokenizer", *facts)


@pytest.mark.parametrize(
    ("flag", "facts"),
    [
        *((f"--seed={seed}", ["--seed", f"'{seed}'", str(2**63 - 1)]) for seed in ("-1", "x", str(2**63))),
        ("--set=heads", ["'heads'", "FIELD=VALUE"]),
    ],
)
def test_a_flag_without_meaning_is_wrong_usage(
    flag: str, facts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["preset", "concat-heads", flag, "-o", str(tmp_path / "bundle")])
    assert exit_.value.code == 2
    printed = capsys.readouterr().err
    for fact in facts:
        assert fact in printed


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        ({QUERY: None}, [QUERY]),
        ({QUERY: torch.zeros(24, 7)}, [QUERY, "[24, 7]", "[24, 24]"]),
        ({"extra.weight": torch.zeros(1)}, ["extra.weight"]),
        ({"extra.weight": torch.zeros(1, dtype=torch.int64)}, ["extra.weight", "torch.int64"]),
        ({QUERY: torch.full((24, 24), torch.nan)}, [QUERY, "NaN"]),
        ({QKV: torch.zeros(())}, [QKV, "[]", "72"]),
        ({QKV: torch.zeros(71, 24)}, [QKV, "[71, 24]", "72"]),
        ({QKV: torch.zeros(72, 24)}, [".weight", "twice", "qkv"]),
    ],
)
def test_an_error_in_weights_is_one_line_with_the_tensor(
    change: dict[str, Tensor | None], facts: list[str], tmp_path: Path, refused: Refused
) -> None:
    encoder = random_encoder(**SMALL)
    changed = {**encoder.state_dict(), **change}
    weights = {name: tensor for name, tensor in changed.items() if tensor is not None}
    refused(save_module(encoder, tmp_path, weights), *facts)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_accepts_every_field_and_is_the_same_after_json(name: str) -> None:
    config = PRESETS[name]({"heads": 2, "d_model": 32, "max_tokens": 20, "pooling": "mean", "layers": 1})
    assert (config.heads, config.d_model, config.max_tokens, config.pooling) == (2, 32, 20, "mean")
    assert config.layers == 1
    assert EncoderConfig.from_dict(json.loads(json.dumps(asdict(config)))) == config


def test_a_vit_block_of_one_head_of_width_d_model_has_no_output_projection() -> None:
    vit_block = PRESETS["vit-block"]
    assert vit_block({"d_model": 96}).head_dim == 64
    assert vit_block({"d_model": 64, "heads": 1}).output_projection is False
    assert vit_block({"d_model": 64, "heads": 2}).output_projection is True
    assert vit_block({"d_model": 96, "heads": 1}).output_projection is True


def test_projected_heads_map_rows_to_another_width() -> None:
    config = PRESETS["projected-heads"]({"d_model": 10, "heads": 2, "head_dim": 4, "value_dim": 7})
    assert (config.feature_width, config.width) == (10, 14)
    assert (config.query_bias, config.key_bias, config.value_bias) == (True, True, True)
    assert PRESETS["projected-heads"]({"positions": "rotary"}).positions == "rotary"


@pytest.mark.exhaustive
@pytest.mark.usefixtures("runs_graphs")
def test_equal_seeds_give_a_preset_equal_random_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--set", "d_model=16", "--set", "heads=2", "--set", "max_tokens=8", "--set", "mask=none"]
    assert main(["preset", "masked-heads", *sizes, "--seed", "3", "-o", str(tmp_path / "bundle")]) == 0
    assert "seed 3\n" in capsys.readouterr().out
    config = PRESETS["masked-heads"]({"d_model": 16, "heads": 2, "max_tokens": 8, "mask": "none"})
    sequences = random_sequences(config, (5, 3))
    hidden = run_graph(tmp_path / "bundle" / "packed-cpu.fp32.onnx", "cpu", sequences).hidden
    same, other = (
        np.concatenate([oracle_of(initial_encoder(config, seed)).hidden(each) for each in sequences]) for seed in (3, 4)
    )
    assert_close_to_scale(hidden, same)
    assert hidden is not None
    assert np.abs(hidden - other).max() > 0.01


@pytest.mark.parametrize(
    ("choice", "facts"),
    [
        ("heads=3", ["heads is 3", "d_model 64", "head_dim"]),
        ("d_model=null", ["d_model is None", "16777216"]),
        ("max_tokens=100000000000", ["max_tokens is 100000000000", "16777216"]),
        ("head=3", ["'head'", "head_dim"]),
        ("positions=absolute", ["positions is 'absolute'", "rotary"]),
    ],
)
def test_a_wrong_choice_is_named_with_its_value(choice: str, facts: list[str], refused: Refused) -> None:
    refused(["preset", "concat-heads", "--set", choice], *facts)
