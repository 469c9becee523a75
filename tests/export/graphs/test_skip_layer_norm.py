"""The simulated SkipLayerNormalization gives ONNX Runtime's published values and shows its rounding errors."""

from typing import Any

import numpy as np
import pytest

from headwaiter_export.graphs import skip_layer_norm
from headwaiter_export.graphs.skip_layer_norm import can_fuse_norms, fused_error, normalize_fused
from tests.export.test_contrib_ops import DTYPES, read_array, read_cases
from tests.support.oracle import Array


def random_rows(width: int, ratio: float, rows: int = 200, dtype: type = np.float32) -> Array:
    """Draw rows [rows, width] of deviation 1 and of this mean."""
    return np.random.default_rng(0).normal(ratio, 1, (rows, width)).astype(dtype)


def error(rows: Array, epsilon: float = 1e-12) -> float:
    """Return the largest relative error for rows, with a scale of 1 and a shift of 0."""
    return fused_error(rows, np.ones_like(rows[0]), np.zeros_like(rows[0]), epsilon)


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case["name"]) for case in read_cases("SkipLayerNormalization")[1]]
)
def test_the_simulation_gives_the_published_values(case: dict[str, Any]) -> None:
    (kind,) = case["run_as"]
    inputs = {name: read_array(stored, kind) for name, stored in case["inputs"].items()}
    gamma = inputs["gamma"]
    rows = inputs["input"] + inputs.get("bias", DTYPES[kind](0)) + inputs["skip"]
    actual = normalize_fused(
        rows.reshape(-1, len(gamma)), gamma, inputs.get("beta", np.zeros_like(gamma)), case["attributes"]["epsilon"]
    )
    expected = np.array(next(iter(case["outputs"].values()))["data"]).reshape(actual.shape)
    tolerance = case["tolerance"][kind]
    assert actual.dtype == DTYPES[kind]
    assert np.all(np.abs(actual - expected) <= tolerance["absolute"] + tolerance.get("relative", 0) * np.abs(expected))


@pytest.mark.parametrize(
    ("width", "threads", "values"),
    [
        # SkipLayerNormKernelSmall<float, threads, values, false> in ONNX Runtime's library
        (24, 32, 4),
        (128, 32, 4),
        (25, 128, 1),
        (136, 40, 8),
        (384, 48, 8),
        (640, 80, 8),
        (768, 96, 8),
        (1024, 128, 8),
        (1032, 160, 8),
        (2048, 256, 8),
        (4096, 512, 8),
        (4104, 640, 8),
        (8192, 1024, 8),
        # SkipLayerNormKernel<float, 256, false>
        (300, 256, 2),
        (8200, 256, 33),
    ],
)
def test_each_thread_of_a_block_adds_the_values_that_it_adds_on_a_gpu(width: int, threads: int, values: int) -> None:
    row = np.arange(1, width + 1, dtype=np.float32)[None]
    parts = skip_layer_norm._values_of_threads(row)
    assert parts.shape == (1, threads, values)
    assert sorted(parts[parts > 0]) == row[0].tolist()
    step = 256 if threads == 256 and width != 2048 else 1
    assert np.diff(parts[0, 0]).tolist() == [step] * (values - 1)


@pytest.mark.parametrize("width", [24, 64, 300, 384, 768, 1024])
def test_the_error_grows_with_the_square_of_the_ratio(width: int) -> None:
    errors = {ratio: error(random_rows(width, ratio)) for ratio in (0, 1, 10, 30, 100)}
    assert errors[0] < 5e-7
    assert errors[1] < 1e-6
    assert 5e-6 < errors[10] < 1e-4
    assert 5e-5 < errors[30] < 1e-3
    assert 5e-4 < errors[100] < 1e-2
    assert [can_fuse_norms(each) for each in errors.values()] == [True, True, False, False, False]


def test_statistics_of_float16_rows_are_float32() -> None:
    # Half of the distance of two float16 values near 1 is 4.9e-4.
    assert error(random_rows(768, 10, dtype=np.float16)) < 1e-3
    # In float16, the squares would overflow.
    assert error(300 * random_rows(768, 0, dtype=np.float16)) < 1e-3


def test_rows_of_equal_values_cannot_be_fused() -> None:
    values = np.random.default_rng(0).standard_normal((50, 1)).astype(np.float32)
    equal = np.repeat(values, 768, axis=1)
    with np.errstate(invalid="ignore"):
        normalized = normalize_fused(equal, equal[0], equal[0], 1e-12)
    assert np.isnan(normalized).any()
    assert error(equal) == np.inf
    assert not can_fuse_norms(error(equal))


def test_rows_of_zeros_have_no_error() -> None:
    assert error(np.zeros((2, 768), np.float32)) == 0
