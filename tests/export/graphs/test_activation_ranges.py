"""The export measures the range of a model's numbers, and writes only graphs that stay within it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from headwaiter_export.bundle.atomic_folder import BundleError
from headwaiter_export.bundle.export import export_bundle
from headwaiter_export.bundle.graphs import GRAPHS, suitable_plans
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_export.encoder.reference import Reference, concatenate, run_in_pytorch
from headwaiter_export.encoder.score_terms import ScoreTerms
from headwaiter_export.graphs.float16 import limiting_magnitude
from headwaiter_export.graphs.packed_cuda import PackedCuda, PackedCudaSeparateNorms
from headwaiter_export.graphs.ranges import ActivationRanges
from headwaiter_proto.encoder_pb2 import PRECISION_FP16, PRECISION_FP32
from headwaiter_server.runtime.numeric_tolerances import difference, violation
from tests.support.export.helpers import random_encoder, random_sequences, shifted_encoder


def measure(encoder: Encoder) -> ActivationRanges:
    ranges = ActivationRanges(encoder)
    with ranges.watch(encoder):
        Reference.compute(encoder, ranges.sequence)
    return ranges


def fused_norm(rows: Tensor, _: object, scale: Tensor, shift: Tensor, eps: float) -> Tensor:
    """Normalise rows as SkipLayerNormalization does on CUDA: the variance is E[x²] − E[x]²."""
    mean, mean_square = rows.mean(1, keepdim=True), rows.pow(2).mean(1, keepdim=True)
    return scale.detach() * (rows - mean) / torch.sqrt(mean_square - mean * mean + eps) + shift.detach()


def welford_norm(x: Tensor, _: object, scale: Tensor, shift: Tensor, eps: float) -> Tensor:
    """Normalise rows as LayerNormalization does on CUDA, by one thread."""
    rows = x.numpy()
    mean, squares = np.zeros_like(rows[:, 0]), np.zeros_like(rows[:, 0])
    for i, values in enumerate(rows.T):
        delta = values - mean
        mean = mean + delta / np.float32(i + 1)
        squares = squares + delta * (values - mean)
    deviation = np.sqrt(squares / np.float32(rows.shape[1]) + np.float32(eps))
    centred = torch.from_numpy((rows - mean[:, None]) / deviation[:, None])
    return scale.detach() * centred + shift.detach()


@pytest.mark.parametrize("prefix_rows", [0, 2])
def test_the_export_measures_the_rows_of_zeros_that_a_server_accepts(prefix_rows: int) -> None:
    encoder = random_encoder(feature_width=6, prefix_rows=prefix_rows, max_tokens=24, fixed_length=True)
    for rows in Reference.compute(encoder).sequences:
        assert np.flatnonzero(~rows.any(axis=1)).tolist() == list(range(len(rows)))[:prefix_rows]


@pytest.mark.parametrize(("ratio", "fits"), [(0.4, True), (30, False)])
def test_norms_are_fused_only_if_their_rounding_keeps_the_model_within_tolerance(
    ratio: float, *, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = shifted_encoder(ratio)
    ranges = measure(encoder)
    assert ratio < ranges.norm_ratio < 5 * ratio
    assert ranges.fuse_norms == fits
    sequences = random_sequences(encoder.config, (1, 5, 48))
    expected = concatenate(run_in_pytorch(encoder, sequences))
    violations = []
    for norm in (fused_norm, welford_norm):
        monkeypatch.setattr(F, "layer_norm", norm)
        violations.append(
            violation(difference(concatenate(run_in_pytorch(encoder, sequences)), expected), PRECISION_FP32)
        )
    fused, separate = violations
    assert (fused is None) == fits
    assert separate is None


def test_plans_of_fp16_alone_are_refused_beyond_float16(tmp_path: Path) -> None:
    encoder = random_encoder(feature_width=6, layers=1)
    encoder.state_dict()["layers.0.feed_forward.down.bias"][0] = 7e4
    plans = [plan for plan in GRAPHS if plan.precision == PRECISION_FP16]
    with pytest.raises(BundleError) as error:
        export_bundle(encoder, None, tmp_path / "bundle", "tiny", plans=plans)
    for fact in ("layers.0.feed_forward.down.bias", "70000", "65504"):
        assert fact in str(error.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "part",
    [
        "embedding.tokens",
        "embedding.norm",
        "layers.0.attention.query",
        "layers.0.attention.value",
        "layers.0.attention.output",
        "layers.0.feed_forward.down",
        "norm",
    ],
)
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_first_layer_beyond_float16_is_named(part: str, norm: str) -> None:
    encoder = random_encoder(feature_width=6, layers=1, norm=norm, final_norm=True)
    for parameter in encoder.get_submodule(part).parameters():
        parameter.data *= 3e4
    assert limiting_magnitude(measure(encoder).magnitudes)[0] == part


def test_large_scores_are_named() -> None:
    encoder = random_encoder(feature_width=6, layers=1)
    for name in ("query", "key"):
        for parameter in encoder.get_submodule(f"layers.0.attention.{name}").parameters():
            parameter.data *= 300
    assert limiting_magnitude(measure(encoder).magnitudes)[0] == "layers.0.attention.scores"


@pytest.mark.parametrize(
    ("product", "table", "distance_keys", "distance_queries", "cap", "largest"),
    [
        pytest.param(1000, -900, 0, 0, 0, 1000, id="the product"),
        pytest.param(0, 600, -1000, 0, 0, 1000, id="a term"),
        pytest.param(0, 800, 700, -900, 0, 1500, id="a sum of terms"),
        pytest.param(500, 600, 0, 0, 0, 1100, id="the sum of the product and the terms"),
        pytest.param(5000, 600, 0, 0, 100, 5000, id="the product before its cap"),
        pytest.param(2000, 60_000, 0, 0, 1000, 60_964.03, id="the sum of the capped product and the terms"),
        pytest.param(5, 0, 0, 0, 100_000, 100_000, id="the cap"),
    ],
)
def test_each_number_that_an_unfused_kernel_stores_counts(
    product: float, table: float, distance_keys: float, distance_queries: float, cap: float, largest: float
) -> None:
    # One token and one head of size 4, so products are divided by 2.
    query, key = torch.tensor([[[2.0, 0, 0, 0]]]), torch.tensor([[[product, 2.0, 0, 0]]])
    terms = ScoreTerms(
        table=torch.tensor([[table]]),
        distance_keys=torch.tensor([[[distance_keys, 0.0, 0, 0]]]),
        distance_queries=torch.tensor([[[0.0, distance_queries, 0, 0]]]),
        cap=cap,
    )
    ranges = ActivationRanges(random_encoder(feature_width=6, layers=1))
    ranges.scores("scores", query, key, terms)
    assert ranges.magnitudes["scores"] == pytest.approx(largest, rel=1e-6)


def test_a_large_residual_sum_is_named_by_the_norm_that_reads_it() -> None:
    encoder = random_encoder(feature_width=6, layers=1, norm="none", embedding_norm=False, final_norm=True)
    for parameter in encoder.layers.parameters():
        parameter.data.zero_()
    for part in ("embedding.tokens", "layers.0.feed_forward.down"):
        encoder.get_submodule(part).get_parameter("bias").data[0] = 6e4
    assert limiting_magnitude(measure(encoder).magnitudes)[0] == "norm"


@pytest.mark.parametrize(
    ("magnitudes", "limiting"),
    [
        ({"a": 1.0, "b": 3.0, "c": 2.0}, ("b", 3.0)),
        ({"a": 1.0, "b": 7e4, "c": 9e4}, ("b", 7e4)),
        ({"a": 65504.0, "b": 65505.0}, ("b", 65505.0)),
        ({"a": 1.0, "b": float("inf")}, ("b", float("inf"))),
    ],
)
def test_the_limiting_magnitude(magnitudes: dict[str, float], limiting: tuple[str, float]) -> None:
    assert limiting_magnitude(magnitudes) == limiting


@pytest.mark.parametrize("largest", [65504.0, 65505.0])
@pytest.mark.parametrize("fuses_norms", [True, False])
def test_suitable_plans(largest: float, *, fuses_norms: bool) -> None:
    chosen = suitable_plans(GRAPHS, largest_magnitude=largest, fuses_norms=fuses_norms)
    assert [plan.file for plan in chosen] == [
        plan.file for plan in GRAPHS if largest <= 65504 or plan.precision != PRECISION_FP16
    ]
    for plan in chosen:
        (original,) = (each for each in GRAPHS if each.file == plan.file)
        expected = PackedCuda if fuses_norms else PackedCudaSeparateNorms
        assert plan.layout is (expected if original.layout is PackedCuda else original.layout)


def test_a_product_that_only_its_bias_keeps_in_range_counts_without_the_bias() -> None:
    encoder = random_encoder(feature_width=6, layers=1)
    attention: Any = encoder.layers[0].attention
    output, value = attention.output, attention.value
    with torch.no_grad():
        output.weight.zero_()
        output.bias.fill_(-60_000.0)
        value.weight.zero_()
        value.bias.fill_(100.0)
        output.weight[:, 0] = 1200.0
    # The product is 120,000, and the sum with the bias 60,000.
    name, magnitude = limiting_magnitude(measure(encoder).magnitudes)
    assert name == "layers.0.attention.output"
    assert magnitude == pytest.approx(120_000)
