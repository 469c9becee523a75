"""Every kind of encoder, in every attention layout, equals the formulas in float64."""

import ast
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import cache
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from headwaiter_export.config.choices import Norm
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.config.presets import PRESETS
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_export.encoder.reference import concatenate, normalize_outputs, run_in_pytorch
from headwaiter_export.graphs.float16 import to_float16
from headwaiter_export.graphs.graph_layout import Packed
from headwaiter_export.graphs.packed_cpu import PackedCpu
from headwaiter_export.graphs.packed_cuda import PackedCuda
from headwaiter_export.graphs.portable import Portable
from headwaiter_export.graphs.tracing import TRACED_LENGTHS, write_graph
from headwaiter_proto.encoder_pb2 import PRECISION_FP16
from headwaiter_proto.rules.pooling import normalize_pooled
from headwaiter_server.runtime.graph import GraphOutputs
from headwaiter_server.runtime.numeric_tolerances import difference, violation
from tests.support import oracle
from tests.support.export.helpers import (
    RUNTIMES,
    assert_close,
    assert_close_to_scale,
    formula_outputs,
    operators_of,
    oracle_of,
    random_encoder,
    random_sequences,
    run_graph,
    write_graphs,
)
from tests.support.export.pairwise_configs import PRESET_CHOICES, VALUES, pairs, pairwise_configs, valid_configs
from tests.support.oracle import Array
from tests.support.tiers import exhaustive

# The number of configurations that every run tests; the others are exhaustive.
EVERY_RUN = 21
RANDOM_CONFIGS, TRACED_RANDOM_CONFIGS = 200, 30
BATCHES = 30
# PyTorch runs each sequence alone, so the shapes of the batches do not matter, and fewer sequences suffice.
BATCHES_IN_PYTORCH = 10
# The smallest cosine in fp16 of encoders with random weights that are gated or have modules after pooling; a server
# accepts 0.9999.
MOST_INEXACT_FP16 = 0.9993
# The largest error of encoders that magnify rounding errors; in float64, they differ by less than 1e-5.
MAGNIFIED_ERROR = 3e-4
# Rounding errors of float32 change no choice of experts if their scores differ by this share of the largest score.
LEAST_GAP = 1e-5
# Variants that the docstrings of presets mention.
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("vit-block", {"d_model": 20, "heads": 1, "head_dim": 20}),
    ("vit-block", {"d_model": 20, "heads": 2, "d_ff": 40, "positions": "learned", "layers": 2}),
    ("projected-heads", {"d_model": 10, "head_dim": 6, "value_dim": 7, "positions": "rotary"}),
    ("transformer-encoder", {"d_model": 24, "heads": 3, "d_ff": 40, "vocabulary_size": 50, "positions": "learned"}),
]
# The number of configurations in `pairwise_configs`. Drawing them takes seconds, so tests are collected by the names of
# their configurations, and only a process that runs such a test draws the configurations.
PAIRWISE_CONFIGS = 106
NAMES = [
    *map(str, range(PAIRWISE_CONFIGS)),
    *(f"{name}-{i}" for i, (name, _) in enumerate(VARIANTS)),
    *(f"random-{i}" for i in range(RANDOM_CONFIGS)),
]
ENCODERS = [*NAMES[:EVERY_RUN], *exhaustive(*NAMES[EVERY_RUN:])]


@cache
def named_configs() -> dict[str, EncoderConfig]:
    """Return the configurations by their names in `NAMES`."""
    variants = (PRESETS[name]({"max_tokens": 48, "pooling": "mean", **choices}) for name, choices in VARIANTS)
    drawn = Random(1).sample(valid_configs(), RANDOM_CONFIGS)
    return dict(zip(NAMES, (*pairwise_configs(), *variants, *drawn), strict=True))


@pytest.fixture
def config(request: pytest.FixtureRequest) -> EncoderConfig:
    """The configuration of a name in `NAMES`."""
    return named_configs()[request.param]


def ragged_batches(config: EncoderConfig, batches: int = BATCHES) -> list[list[int]]:
    """Return the lengths of each batch: edge lengths, then 1 to 6 random lengths."""
    shortest, longest = config.min_tokens, config.max_tokens
    edges = [[shortest], [longest], [shortest] * 3, [longest, shortest]]
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 7, batches - len(edges))
    return [*edges, *(rng.integers(shortest, longest + 1, size).tolist() for size in sizes)]


def expected_outputs(encoder: Encoder, batches: int = BATCHES) -> Iterator[tuple[list[Array], GraphOutputs]]:
    """Yield batches, and the outputs of the formulas for each batch."""
    config, formula = encoder.config, oracle_of(encoder)
    for seed, lengths in enumerate(ragged_batches(config, batches)):
        sequences, rows = hidden_rows(formula, config, lengths, seed)
        yield sequences, formula_outputs(formula, config, rows)


def hidden_rows(
    formula: oracle.Oracle, config: EncoderConfig, lengths: list[int], seed: int
) -> tuple[list[Array], list[Array]]:
    """Return sequences in which experts are chosen by a clear gap, and their hidden rows."""
    for again in count(seed, BATCHES):
        sequences, rows, gaps = random_sequences(config, lengths, again), [], []
        for sequence in sequences:
            rows.append(formula.hidden(sequence))
            gaps.append(formula.smallest_gap)
        if min(gaps) >= LEAST_GAP:
            break
    return sequences, rows


def assert_equal_outputs(config: EncoderConfig, actual: GraphOutputs, expected: GraphOutputs) -> None:
    assert expected.hidden is not None
    # Norms of a block's output, instead of a residual sum, magnify the errors of rows that are nearly zero.
    tolerance = 1e-5 if config.residual and config.norm is not Norm.SANDWICH else 3e-5
    if config.score_cap:
        # A cap c multiplies the rounding error of tanh by c, also where the products are small.
        tolerance *= 3
    if config.experts and config.gated:
        # Experts multiply products of rounded factors.
        tolerance = MAGNIFIED_ERROR
    assert_close_to_scale(actual.hidden, expected.hidden, tolerance)
    if expected.pooled is None:
        assert actual.pooled is None
    else:
        assert actual.pooled is not None
        pooled = normalize_pooled(actual.pooled, normalized=config.normalize)
        # The norm of a vocabulary's head magnifies these errors again.
        magnified = config.vocabulary_head is not None and not config.residual
        assert_close_to_scale(pooled, expected.pooled, 2 * tolerance if magnified else tolerance)
    assert (actual.logits is None) == (expected.logits is None) == (config.head is None)
    if actual.logits is not None and expected.logits is not None:
        logits = np.concatenate(expected.logits)
        # A single logit can be near 0, although the terms that it sums are not.
        scale = max(1.0, np.abs(logits).max())
        if config.experts and not config.residual:
            # Rounding the weights alone changes a logit of one random encoder by 1.6e-5 of the largest logit.
            tolerance *= 2
        assert_close(np.concatenate(actual.logits) / scale, logits / scale, tolerance)


def assert_fused_attention(config: EncoderConfig, path: Path) -> None:
    """Check that a graph for CUDA has fused attention unless no kernel has such scores."""
    # Attention from all rows of a decoder to the encoder depends on no distance.
    by_content = (config.distance_keys or config.distance_queries or config.score_cap) and not config.decodes_rows
    gathers = by_content or config.expansion_id is not None
    assert (operators_of(path)["PackedMultiHeadAttention"] == 0) == bool(gathers)


def test_every_preset_is_tested_in_every_run() -> None:
    assert list(PRESET_CHOICES) == list(PRESETS)
    assert len(PRESETS) <= EVERY_RUN


def test_every_field_is_varied() -> None:
    for field in fields(EncoderConfig):
        if field.name in ("waveform", "feed_forward_experts", "distance_grid"):
            # Sounds are compared with transformers, in checkpoints/test_waveforms.py, experts with formulas of their
            # own, in checkpoints/test_hub_layouts.py, and grids of one size in encoder/test_attention_bias.py.
            continue
        assert field.name in VALUES, f"{field.name} is not varied: give it values in pairwise_configs.py"
    for name, values in VALUES.items():
        for configs in (valid_configs(), pairwise_configs()[:EVERY_RUN]):
            assert {getattr(config, name) for config in configs} == set(values), f"{name} does not take all its values"
        assert len(values) > 1, f"{name} has one value in tests/support/export/pairwise_configs.py: give it others"


def test_every_possible_pair_of_values_occurs(record_property: Callable[[str, object], None]) -> None:
    every_run, all_pairs, possible = (
        {pair for config in configs for pair in pairs(config)}
        for configs in (pairwise_configs()[:EVERY_RUN], pairwise_configs(), valid_configs())
    )
    assert all_pairs == possible
    assert len(every_run) > 0.75 * len(possible)
    record_property(
        "pairwise configurations of EncoderConfig's fields",
        f"{len(pairwise_configs())} configurations contain all {len(possible)} pairs of values, "
        f"the first {EVERY_RUN} contain {len(every_run)}",
    )


def test_batches_have_other_shapes_than_the_traced_batch() -> None:
    for config in pairwise_configs():
        shapes = {(len(lengths), max(lengths)) for lengths in ragged_batches(config)} - {
            (len(TRACED_LENGTHS), max(TRACED_LENGTHS))
        }
        assert len(shapes) >= 20
        assert {(1, config.min_tokens), (1, config.max_tokens), (3, config.min_tokens)} <= shapes


def test_the_formulas_import_only_numpy() -> None:
    tree = ast.parse(Path(oracle.__file__).read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} - sys.stdlib_module_names == {"numpy"}


@pytest.mark.parametrize("config", ENCODERS, indirect=True)
def test_an_encoder_equals_its_formulas_in_pytorch(config: EncoderConfig) -> None:
    encoder = random_encoder(**vars(config))
    for sequences, expected in expected_outputs(encoder, BATCHES_IN_PYTORCH):
        assert_equal_outputs(config, concatenate(run_in_pytorch(encoder, sequences)), expected)


# Tracing takes 5 to 50 s, so every run traces one layout of two configurations. The exhaustive tests trace all
# layouts of the configurations of every run, and one layout of the others, of few random ones.
TRACED_IN_EVERY_RUN = [("0", PackedCpu), ("6", PackedCuda)]
TRACED = [
    (name, layout)
    for number, name in enumerate(NAMES[: len(NAMES) - RANDOM_CONFIGS + TRACED_RANDOM_CONFIGS])
    for place, layout in enumerate(RUNTIMES)
    if number < EVERY_RUN or place == (number + number // 3) % len(RUNTIMES)
]


@pytest.mark.usefixtures("runs_graphs")
@pytest.mark.parametrize(
    ("config", "layout"),
    [*TRACED_IN_EVERY_RUN, *exhaustive(*(case for case in TRACED if case not in TRACED_IN_EVERY_RUN))],
    indirect=["config"],
)
def test_an_encoder_equals_its_formulas_in_every_layout(
    config: EncoderConfig, layout: type[Packed] | type[Portable], tmp_path: Path
) -> None:
    encoder = random_encoder(**vars(config))
    path = write_graphs(encoder, tmp_path, layout)[layout]
    if layout is PackedCuda:
        assert_fused_attention(config, path)
    for sequences, expected in expected_outputs(encoder):
        assert_equal_outputs(config, run_graph(path, RUNTIMES[layout], sequences), expected)


def is_inexact_in_fp16(config: EncoderConfig) -> bool:
    """Return whether rounding to fp16 changes too much of some random encoders: servers refuse these in fp16."""
    # Rounding changes the choices of experts. Without residuals, norms magnify the rounding of gated experts.
    return config.chooses_experts or bool(config.experts and not config.residual)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("runs_graphs")
@pytest.mark.parametrize("config", NAMES[: 2 * EVERY_RUN], indirect=True)
def test_an_encoder_in_fp16_is_within_the_tolerance_of_its_formulas(config: EncoderConfig, tmp_path: Path) -> None:
    if is_inexact_in_fp16(config):
        pytest.skip("servers refuse this encoder in fp16")
    encoder, path = random_encoder(**vars(config)), tmp_path / "graph.onnx"
    write_graph(to_float16(encoder.fold_temperatures()), PackedCuda, path)
    assert_fused_attention(config, path)
    for sequences, expected in expected_outputs(encoder):
        actual = normalize_outputs(config, run_graph(path, RUNTIMES[PackedCuda], sequences))
        measured = difference(actual, expected)
        # Products of two rounded factors double the error. The worst of these encoders differ in their norms.
        if config.after_pooling and measured.min_cosine >= MOST_INEXACT_FP16:
            # Modules after pooling magnify the error of a vector: without them, the cosine of one encoder is
            # 0.999998 instead of 0.99988. Its rows and logits must be as exact as those of other encoders.
            measured = replace(measured, min_cosine=1.0)
        if not config.gated or measured.min_cosine < MOST_INEXACT_FP16:
            assert violation(measured, PRECISION_FP16) is None


@pytest.mark.gpu
@pytest.mark.parametrize("config", ENCODERS, indirect=True)
def test_an_encoder_equals_its_formulas_on_cuda(config: EncoderConfig, tmp_path: Path) -> None:
    encoder = random_encoder(**vars(config))
    path = write_graphs(encoder, tmp_path, PackedCuda)[PackedCuda]
    for sequences, expected in expected_outputs(encoder):
        assert_equal_outputs(config, run_graph(path, "cuda", sequences), expected)
