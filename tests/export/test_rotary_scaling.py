"""Scaled rotary positions of checkpoints equal those of `transformers`, in all families and at every length."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from headwaiter_export.checkpoints.reader import read_checkpoint
from headwaiter_export.config.field_checks import ConfigError
from headwaiter_export.config.rotary_scaling import RotaryScaling, ScalingKind
from headwaiter_export.encoder.reference import run_in_pytorch
from tests.support.export.family_checkpoints import LINEAR, ROPE, assert_equals_transformers, save_family
from tests.support.export.family_examples import WINDOW, save_example
from tests.support.export.helpers import (
    assert_checkpoint_refused,
    assert_close_to_scale,
    assert_mentions,
    edit_json,
    oracle_of,
    random_encoder,
)
from tests.support.tiers import exhaustive

pytestmark = pytest.mark.usefixtures("runs_transformers")

LLAMA3 = {
    **ROPE,
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 12,
}
YARN = {**ROPE, "rope_type": "yarn", "factor": 3.0, "original_max_position_embeddings": 8}
SCALINGS: dict[str, dict[str, Any]] = {
    "linear": LINEAR,
    "dynamic": {**ROPE, "rope_type": "dynamic", "factor": 3.7},
    "llama3": LLAMA3,
    "yarn": YARN,
    "yarn, as long as its training": {**ROPE, "rope_type": "yarn", "factor": 1.0},
    "yarn with a factor of attention": {**YARN, "attention_factor": 1.7, "beta_fast": 2, "beta_slow": 0.5},
    "yarn with two scales": {**YARN, "mscale": 2.0, "mscale_all_dim": 0.5, "truncate": True},
    "yarn between whole pairs": {**YARN, "beta_fast": 1.5, "beta_slow": 0.1, "truncate": False},
    "yarn with the factor of the lengths": {**YARN, "factor": None},
}
FAMILIES = ("NomicBert", "Gte", "Llama", "EuroBert", "Mistral", "Qwen3")
# Families whose global and local layers have parameters of their own.
LAYERED = ("ModernBert", "Gemma3")


def save_scaled(folder: Path, name: str, parameters: dict[str, Any], local: dict[str, Any] | None = None) -> Any:
    """Save a random checkpoint; in a family of LAYERED, `local` has the parameters of the second layer."""
    if name in LAYERED:
        kinds = {"full_attention": {**parameters}, "sliding_attention": {**(local or ROPE)}}
        return save_example(folder, name, layer_types=[*kinds], rope_parameters=kinds, max_position_embeddings=24)
    return save_example(folder, name, rope_parameters={**parameters})


# One family of each kind in every run; the others share their code.
@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("name", ["Qwen3", *exhaustive(*(name for name in FAMILIES if name != "Qwen3"))])
def test_scaled_positions_equal_those_of_transformers(name: str, scaling: str, tmp_path: Path) -> None:
    model = save_scaled(tmp_path, name, SCALINGS[scaling])
    encoder = read_checkpoint(tmp_path).encoder
    assert encoder.config.max_tokens == 24
    assert_equals_transformers(encoder, model, (1, 2, WINDOW, WINDOW + 1, 13, 24))


@pytest.mark.parametrize("scaling", [name for name in SCALINGS if "whole" not in name and "lengths" not in name])
@pytest.mark.parametrize("name", ["ModernBert", *exhaustive("Gemma3")])
def test_global_and_local_layers_have_scalings_of_their_own(name: str, scaling: str, tmp_path: Path) -> None:
    for number, parameters in enumerate(((SCALINGS[scaling], ROPE), ({**ROPE, "rope_theta": 9.0}, SCALINGS[scaling]))):
        (tmp_path / str(number)).mkdir()
        model = save_scaled(tmp_path / str(number), name, *parameters)
        assert_equals_transformers(read_checkpoint(tmp_path / str(number)).encoder, model, (1, 2, 6, 13, 24))


@pytest.mark.parametrize("scaling", ["none", "yarn", *exhaustive(*(name for name in SCALINGS if name != "yarn"))])
def test_positions_of_a_long_model_equal_those_of_transformers_bit_for_bit(scaling: str, tmp_path: Path) -> None:
    parameters = {**SCALINGS.get(scaling, ROPE), "rope_theta": 500_000.0}
    if "original_max_position_embeddings" in parameters:
        parameters["original_max_position_embeddings"] = 4096
    sizes: dict[str, Any] = {
        "hidden_size": 128,
        "num_attention_heads": 2,
        "max_position_embeddings": 32_768,
        "num_hidden_layers": 1,
    }
    model = save_family(tmp_path, "Llama", **sizes, rope_parameters=parameters)
    cosines, sines = model.rotary_emb(torch.empty(1), torch.arange(32_768)[None])
    positions = read_checkpoint(tmp_path).encoder.get_submodule("layers.0.attention.positions")
    assert torch.equal(positions.get_buffer("cosines"), cosines[0, :, :32])
    assert torch.equal(positions.get_buffer("sines"), sines[0, :, :32])


@pytest.mark.parametrize("name", ["Llama", "ModernBert", "Gemma3"])
def test_the_field_of_older_releases_equals_transformers(name: str, tmp_path: Path) -> None:
    save_scaled(tmp_path, name, ROPE, local={**ROPE, "rope_theta": 9.0})
    kind = {"Llama": {"type": "linear", "factor": 3.0}}.get(name, {"rope_type": "linear", "factor": 3.0})
    old = {"rope_theta": 99.0, "local_rope_theta": 7.0, "rope_local_base_freq": 7.0}
    edit_json(tmp_path / "config.json", rope_parameters=None, rope_scaling=kind, **old)
    model = transformers_model(tmp_path, name)
    encoder = read_checkpoint(tmp_path).encoder
    assert (encoder.config.local_rotary_scaling is None) == (name == "Gemma3")
    assert_equals_transformers(encoder, model, (1, 24))


def transformers_model(folder: Path, name: str) -> Any:
    """Load a checkpoint as transformers reads its config.json."""
    kind = "TextModel" if name == "Gemma3" else "Model"
    return getattr(transformers, f"{name}{kind}").from_pretrained(folder, attn_implementation="eager").eval()


def test_the_length_of_the_first_training_may_be_outside_the_parameters(tmp_path: Path) -> None:
    parameters = {name: value for name, value in YARN.items() if name != "original_max_position_embeddings"}
    save_scaled(tmp_path, "Llama", YARN)
    edit_json(tmp_path / "config.json", rope_parameters=parameters, original_max_position_embeddings=6)
    assert_equals_transformers(read_checkpoint(tmp_path).encoder, transformers_model(tmp_path, "Llama"), (24,))


@pytest.mark.parametrize(
    ("name", "parameters", "fact"),
    [
        ("Llama", {**ROPE, "rope_type": "longrope", "factor": 2.0}, "longrope"),
        ("Llama", {**ROPE, "rope_type": ["linear"]}, "rope_type"),
        ("Llama", {**LINEAR, "partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ("Llama", {**LINEAR, "factor": 0}, "factor"),
        ("Llama", {**LINEAR, "factor": "4"}, "factor"),
        ("Llama", {**ROPE, "rope_type": "dynamic", "alpha": 2.0}, "alpha"),
        ("Llama", {**ROPE, "rope_type": "dynamic", "original_max_position_embeddings": 8}, "original_max"),
        ("Llama", {**LLAMA3, "low_freq_factor": None}, "low_freq_factor"),
        ("Llama", {**LLAMA3, "high_freq_factor": 1.0}, "high_freq_factor is 1.0: it must be above low_freq_factor"),
        ("Llama", {**LLAMA3, "original_max_position_embeddings": 8.5}, "original_max_position_embeddings is 8.5"),
        ("Llama", {**YARN, "truncate": "no"}, "truncate is 'no'"),
        ("Llama", {**YARN, "beta_fast": 1}, "beta_fast is 1.0: it must be above beta_slow"),
        ("Llama", {**YARN, "attention_factor": -1.0}, "attention_factor"),
        ("ModernBert", {"full_attention": {**YARN, "truncate": False}}, "truncate"),
        ("ModernBert", {"full_attention": "linear"}, "object"),
    ],
)
def test_a_parameter_that_the_encoder_lacks_is_refused_by_name(
    name: str, parameters: dict[str, Any], fact: str, tmp_path: Path
) -> None:
    save_scaled(tmp_path, name, ROPE)
    edit_json(tmp_path / "config.json", rope_parameters=parameters)
    assert_checkpoint_refused(tmp_path, "rope_parameters", fact)


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        # transformers would ignore the type.
        ("ModernBert", "rope_scaling", {"type": "linear", "factor": 2.0}),
        ("Gemma3", "rope_scaling", "linear"),
        ("Llama", "partial_rotary_factor", 0.5),
    ],
)
def test_a_field_that_the_encoder_lacks_is_refused_by_name(name: str, field: str, value: Any, tmp_path: Path) -> None:
    save_scaled(tmp_path, name, ROPE)
    edit_json(tmp_path / "config.json", **{field: value})
    assert_checkpoint_refused(tmp_path, field)


@pytest.mark.parametrize(
    ("scaling", "facts"),
    [
        ({"kind": "linear"}, ["factor"]),
        ({"kind": "dynamic", "factor": 2.0}, ["kind is 'dynamic'", "linear, llama3, yarn"]),
        ({"kind": "linear", "factor": 2.0, "slow_turns": 2.0}, ["slow_turns", "linear"]),
        ({"kind": "llama3", "factor": 2.0}, ["trained_tokens is 0"]),
        ({"kind": "llama3", "factor": 2.0, "trained_tokens": 9, "fast_turns": 1.0}, ["fast_turns is 1.0"]),
        ({"kind": "yarn", "factor": -2.0, "trained_tokens": 9}, ["factor is -2.0"]),
        ({"kind": "yarn", "factor": 2.0, "trained_tokens": 9, "whole_pairs": 1}, ["whole_pairs is 1"]),
        ("linear", ["'linear'"]),
    ],
)
def test_a_wrong_scaling_of_an_own_encoder_is_refused_by_name(scaling: Any, facts: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        random_encoder(vocabulary_size=50, positions="rotary", rotary_scaling=scaling)
    assert_mentions(error.value, *facts)


def test_yarn_needs_a_base_above_1() -> None:
    scaling = RotaryScaling(kind=ScalingKind.YARN, factor=2.0, trained_tokens=9)
    with pytest.raises(ConfigError) as error:
        random_encoder(vocabulary_size=50, positions="rotary", rotary_theta=1.0, rotary_scaling=scaling)
    assert_mentions(error.value, "rotary_theta is 1")


@pytest.mark.parametrize("kind", ScalingKind)
def test_an_own_encoder_with_scaling_equals_the_formulas(kind: ScalingKind) -> None:
    trained = {} if kind is ScalingKind.LINEAR else {"trained_tokens": 30}
    encoder = random_encoder(
        vocabulary_size=50, positions="rotary", rotary_scaling={"kind": kind, "factor": 3.0, **trained}
    )
    ids = np.random.default_rng(0).integers(0, 50, 48)
    assert_close_to_scale(run_in_pytorch(encoder, [ids])[0].hidden, oracle_of(encoder).hidden(ids))
