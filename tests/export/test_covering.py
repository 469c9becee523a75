"""Every form of self-attention, in every lowering, against the formulas in float64."""

import ast
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headwaiter_export.attention_layout import SingleSequence
from headwaiter_export.attention_layout_cuda import PackedCuda
from headwaiter_export.config import EncoderConfig, Pooling
from headwaiter_export.encoder import Encoder
from headwaiter_export.presets import PRESETS
from headwaiter_server.runtime.graph import Outputs
from headwaiter_server.runtime.tolerance import normalize_pooled
from tests import oracle
from tests.export.covering import PRESET_CHOICES, VALUES, covering_set, pairs, valid_configs
from tests.export.helpers import (
    RUNTIMES,
    TRACED,
    assert_close_to_scale,
    draw,
    oracle_of,
    random_encoder,
    run,
    write_graphs,
)
from tests.oracle import POOLINGS, Array, unit

# So many of the set are proven in every run, the others where `exhaustive` tests are asked for.
EVERY_RUN = 11
BATCHES = 30
# Variants that presets speak of.
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("vit-block", {"d_model": 20, "heads": 1, "head_dim": 20}),
    ("vit-block", {"d_model": 20, "heads": 2, "d_ff": 40, "positions": "learned", "layers": 2}),
    ("projected-heads", {"d_model": 10, "head_dim": 6, "value_dim": 7, "positions": "rotary"}),
    ("transformer-encoder", {"d_model": 24, "heads": 3, "d_ff": 40, "vocabulary_size": 50, "positions": "learned"}),
]
FORMS = [
    pytest.param(config, id=str(i), marks=[pytest.mark.exhaustive] * (i >= EVERY_RUN))
    for i, config in enumerate(covering_set())
] + [
    pytest.param(
        PRESETS[name]({"max_tokens": 48, "pooling": "mean", **choices}), id=f"{name}-{i}", marks=pytest.mark.exhaustive
    )
    for i, (name, choices) in enumerate(VARIANTS)
]


def ragged_batches(config: EncoderConfig) -> list[list[int]]:
    """Return the lengths of each batch: the edges alone and together, then up to 6 sequences of any lengths."""
    shortest, longest = config.min_tokens, config.max_tokens
    edges = [[shortest], [longest], [shortest] * 3, [longest, shortest]]
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 7, BATCHES - len(edges))
    return [*edges, *(rng.integers(shortest, longest + 1, size).tolist() for size in sizes)]


def answers(encoder: Encoder) -> Iterator[tuple[list[Array], Outputs]]:
    """Yield batches, and the formula's answers to them."""
    config, formula = encoder.config, oracle_of(encoder)
    for seed, lengths in enumerate(ragged_batches(config)):
        sequences = draw(config, lengths, seed)
        rows = [formula.hidden(sequence) for sequence in sequences]
        pooled = None
        if config.pooling is not Pooling.NONE:
            pooled = np.stack([POOLINGS[config.pooling](each) for each in rows])
            pooled = unit(pooled) if config.normalize else pooled
        yield sequences, Outputs(pooled, np.concatenate(rows))


@torch.inference_mode()
def eager(encoder: Encoder, sequences: list[Array]) -> Outputs:
    """Answer sequences one by one in PyTorch."""
    answered = [encoder(torch.from_numpy(each), SingleSequence(len(each))) for each in sequences]
    pooled = [each.numpy() for each, _ in answered if each is not None]
    return Outputs(np.concatenate(pooled) if pooled else None, np.concatenate([rows.numpy() for _, rows in answered]))


def check(config: EncoderConfig, actual: Outputs, expected: Outputs) -> None:
    assert expected.hidden is not None
    assert_close_to_scale(actual.hidden, expected.hidden)
    if expected.pooled is None:
        assert actual.pooled is None
    else:
        assert actual.pooled is not None
        assert_close_to_scale(normalize_pooled(actual.pooled, normalized=config.normalize), expected.pooled)


def test_every_preset_is_proven_in_every_run() -> None:
    assert list(PRESET_CHOICES) == list(PRESETS)
    assert len(PRESETS) <= EVERY_RUN


def test_every_field_is_varied() -> None:
    for field in fields(EncoderConfig):
        assert field.name in VALUES, f"{field.name} is not varied: give it values in tests/export/covering.py"
    for name, values in VALUES.items():
        for configs in (valid_configs(), covering_set()[:EVERY_RUN]):
            assert {getattr(config, name) for config in configs} == set(values), f"{name} does not take all its values"
        assert len(values) > 1, f"{name} has one value in tests/export/covering.py: give it others"


def test_every_pair_of_values_that_can_occur_does(record_property: Callable[[str, object], None]) -> None:
    proven, whole, possible = (
        {pair for config in configs for pair in pairs(config)}
        for configs in (covering_set()[:EVERY_RUN], covering_set(), valid_configs())
    )
    assert whole == possible
    assert len(proven) > 0.8 * len(possible)
    record_property(
        "pairwise covering set of EncoderConfig's fields",
        f"{len(covering_set())} configurations hold all {len(possible)} pairs of values, "
        f"the first {EVERY_RUN} hold {len(proven)}",
    )


def test_the_batches_are_of_shapes_never_traced() -> None:
    for config in covering_set():
        shapes = {(len(lengths), max(lengths)) for lengths in ragged_batches(config)} - {(len(TRACED), max(TRACED))}
        assert len(shapes) >= 20
        assert {(1, config.min_tokens), (1, config.max_tokens), (3, config.min_tokens)} <= shapes


def test_the_formulas_are_written_in_nothing_but_numpy() -> None:
    tree = ast.parse(Path(oracle.__file__).read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} - sys.stdlib_module_names == {"numpy"}


@pytest.mark.parametrize("config", FORMS)
def test_a_form_is_its_formula_in_pytorch_and_in_every_lowering(config: EncoderConfig, tmp_path: Path) -> None:
    encoder = random_encoder(**asdict(config))
    paths = write_graphs(encoder, tmp_path, *RUNTIMES)
    for sequences, expected in answers(encoder):
        check(config, eager(encoder, sequences), expected)
        for lowering, runtime in RUNTIMES.items():
            check(config, run(paths[lowering], runtime, sequences), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("config", FORMS)
def test_a_form_is_its_formula_on_cuda(config: EncoderConfig, tmp_path: Path) -> None:
    encoder = random_encoder(**asdict(config))
    path = write_graphs(encoder, tmp_path, PackedCuda)[PackedCuda]
    for sequences, expected in answers(encoder):
        check(config, run(path, "cuda", sequences), expected)
