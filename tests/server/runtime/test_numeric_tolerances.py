"""Differences from PyTorch are measured correctly, and a difference over the tolerance is reported."""

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.typing import NDArray

from headwaiter_proto.encoder_pb2 import PRECISION_FP16, PRECISION_FP32, PRECISION_INT8, Precision
from headwaiter_proto.rules.pooling import normalize_pooled
from headwaiter_server.runtime.graph import GraphOutputs
from headwaiter_server.runtime.numeric_tolerances import Difference, difference, violation


def _difference(
    pooled: tuple[float, float] = (0.0, 0.0),
    hidden: tuple[float, float] = (0.0, 0.0),
    min_cosine: float = 1.0,
    hidden_min_cosine: float = 1.0,
    logits: tuple[float, float] = (0.0, 0.0),
) -> Difference:
    """Return a difference with (absolute, relative) differences of pooled vectors, hidden rows and logits."""
    return Difference(pooled[0], hidden[0], pooled[1], hidden[1], min_cosine, 1.0, hidden_min_cosine, *logits)


def _outputs(pooled: object, hidden: object) -> GraphOutputs:
    return GraphOutputs(None if pooled is None else np.array(pooled, np.float32), np.array(hidden, np.float32))


@given(
    arrays(
        np.float32,
        array_shapes(min_dims=2, max_dims=2, max_side=6),
        elements=st.floats(-1e6, 1e6, width=32) | st.just(0.0),
    )
)
@example(np.array([[3e-8, 4e-8], [3e-14, 4e-14], [0, 0]], np.float32))
def test_normalized_vectors_equal_those_of_torch(pooled: NDArray[np.float32]) -> None:
    expected = torch.nn.functional.normalize(torch.from_numpy(pooled), dim=-1).numpy()
    unit = normalize_pooled(pooled, normalized=True)
    assert unit.dtype == np.float32
    np.testing.assert_allclose(unit, expected, rtol=1e-6, atol=1e-7)


def test_vectors_of_a_model_without_normalization_stay_the_same() -> None:
    pooled = np.array([[3.0, 4.0]], np.float32)
    assert normalize_pooled(pooled, normalized=False) is pooled


def test_differences_are_the_largest_over_all_vectors() -> None:
    measured = difference(
        _outputs([[0.5, 0.0], [0.0, 0.75]], [[0.0, 0.0], [0.0, 0.125]]),
        _outputs([[1.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [0.0, 0.0]]),
    )
    assert (measured.pooled_max_abs, measured.hidden_max_abs) == (0.5, 0.125)


def test_relative_differences_are_divided_by_the_largest_expected_magnitude() -> None:
    measured = difference(_outputs([[100.5, 3.0]], [[0.75]]), _outputs([[-100.0, 3.0]], [[0.5]]))
    assert (measured.pooled_max_abs, measured.hidden_max_abs) == (200.5, 0.25)
    assert measured.pooled_max_relative == pytest.approx(2.005)
    assert measured.hidden_max_relative == 0.5


def test_the_cosine_of_two_zero_vectors_is_1_and_of_one_zero_vector_0() -> None:
    zero, other = _outputs([[0, 0]], [[1]]), _outputs([[1, 0]], [[1]])
    assert difference(zero, zero).min_cosine == 1
    assert difference(zero, other).min_cosine == difference(other, zero).min_cosine == 0


def test_the_mean_and_the_smallest_cosine_are_over_all_vectors() -> None:
    measured = difference(_outputs([[1, 0], [1, 1]], [[1]]), _outputs([[2, 0], [1, 0]], [[1]]))
    assert measured.min_cosine == pytest.approx(0.5**0.5)
    assert measured.mean_cosine == pytest.approx((1 + 0.5**0.5) / 2)


def test_the_cosine_is_of_pooled_vectors_or_without_pooling_of_hidden_rows() -> None:
    right_angle, diagonal = [[1.0, 0.0]], [[1.0, 1.0]]
    pooled = difference(_outputs(diagonal, right_angle), _outputs(right_angle, right_angle))
    hidden = difference(_outputs(None, diagonal), _outputs(None, right_angle))
    assert pooled.min_cosine == pytest.approx(0.5**0.5)
    assert hidden.min_cosine == pytest.approx(0.5**0.5)
    assert (hidden.pooled_max_abs, hidden.hidden_max_abs) == (0.0, 1.0)


# Random rows [B, 8]: pooled vectors and hidden rows of a model.
_ROWS = np.random.default_rng(0).standard_normal((5, 8))
_TURNED = np.where(np.arange(5)[:, None] == 3, _ROWS[:, ::-1], _ROWS)


@pytest.mark.parametrize("scale", [1e-300, 1e-30, 1e-7, 1.0, 1e4])
@pytest.mark.parametrize(
    ("pooled", "hidden"),
    [(-_ROWS, _ROWS), (_ROWS, -_ROWS), (_ROWS, _TURNED), (2 * _ROWS, _ROWS), (_ROWS, 0 * _ROWS), (None, _TURNED)],
    ids=["pooled negated", "hidden negated", "one row turned", "pooled doubled", "hidden zero", "without pooling"],
)
def test_wrong_outputs_violate_the_fp32_tolerance_whatever_their_magnitude(
    pooled: NDArray[np.float64] | None, hidden: NDArray[np.float64], scale: float
) -> None:
    actual = GraphOutputs(None if pooled is None else scale * pooled, scale * hidden)  # type: ignore[arg-type]
    right = GraphOutputs(None if pooled is None else scale * _ROWS, scale * _ROWS)  # type: ignore[arg-type]
    assert violation(difference(right, right), PRECISION_FP32) is None
    assert violation(difference(actual, right), PRECISION_FP32) is not None


@pytest.mark.parametrize("precision", [PRECISION_FP16, PRECISION_INT8])
@pytest.mark.parametrize("factor", [1e-7, 2.0])
def test_outputs_of_another_scale_violate_every_tolerance(factor: float, precision: Precision) -> None:
    rows = _ROWS.astype(np.float32)
    for wrong in (GraphOutputs(factor * rows, rows), GraphOutputs(rows, factor * rows)):
        assert violation(difference(wrong, GraphOutputs(rows, rows)), precision) is not None


@pytest.mark.parametrize("scale", [1e-7, 1.0, 1e4])
def test_rounding_errors_of_a_negligible_row_are_within_the_tolerance(scale: float) -> None:
    rounding = 4e-6 * np.linalg.norm(_ROWS, axis=-1).max() * _TURNED / np.linalg.norm(_TURNED, axis=-1, keepdims=True)
    weights = np.array([[1.0], [1.0], [1.0], [0.0], [1e-4]])
    rows = (scale * weights * _ROWS).astype(np.float32)
    actual = (scale * (weights * _ROWS + np.where(weights < 1, rounding, 0))).astype(np.float32)
    pooled = _ROWS.astype(np.float32)
    assert violation(difference(GraphOutputs(pooled, actual), GraphOutputs(pooled, rows)), PRECISION_FP32) is None
    assert violation(difference(GraphOutputs(None, actual), GraphOutputs(None, rows)), PRECISION_FP32) is None


@pytest.mark.parametrize("precision", [PRECISION_FP32, PRECISION_FP16, PRECISION_INT8])
@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (_outputs([[1, 2], [1, 2]], [[1]]), _outputs([[1, 2]], [[1]])),
        (_outputs([[1, 2]], [[1], [1]]), _outputs([[1, 2]], [[1]])),
        (_outputs([[1, 2]], [[1]]), _outputs(None, [[1]])),
        (_outputs(None, [[1]]), _outputs([[1, 2]], [[1]])),
        (_outputs(np.empty((0, 2)), np.empty((0, 2))), _outputs(np.empty((0, 2)), np.empty((0, 2)))),
        (_outputs([[1, 2]], [[1]]), _outputs([[1, np.nan]], [[1]])),
        (_outputs([[1, 2]], [[1]]), _outputs([[1, 2]], [[np.inf]])),
    ],
    ids=["pooled stretched", "hidden stretched", "no expected pooled", "no pooled", "empty", "NaN", "infinity"],
)
def test_outputs_that_cannot_be_compared_exceed_every_tolerance(
    actual: GraphOutputs, expected: GraphOutputs, precision: Precision
) -> None:
    assert violation(difference(actual, expected), precision) is not None


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("output", ["pooled", "hidden"])
@pytest.mark.parametrize("precision", [PRECISION_FP32, PRECISION_FP16, PRECISION_INT8])
def test_outputs_that_are_not_finite_exceed_every_tolerance(value: float, output: str, precision: Precision) -> None:
    expected = _outputs([[1.0, 0.0]], [[1.0, 0.0]])
    wrong = [[1.0, value]]
    actual = _outputs(wrong, [[1.0, 0.0]]) if output == "pooled" else _outputs([[1.0, 0.0]], wrong)
    assert "not finite" in (violation(difference(actual, expected), precision) or "")


@pytest.mark.parametrize(
    ("precision", "measured", "facts"),
    [
        (PRECISION_FP32, _difference(), None),
        # Outputs below 1 may differ by the absolute limit.
        (PRECISION_FP32, _difference((1e-5, 1e-3), (1e-4, 1e-3), 0.99999, 0.99999), None),
        (PRECISION_FP32, _difference((1e-5, 1.1e-3)), ["pooled", "1.10e-03", "0.001"]),
        (PRECISION_FP32, _difference(hidden=(1e-5, 1.1e-3)), ["hidden", "1.10e-03", "0.001"]),
        (PRECISION_FP32, _difference(min_cosine=0.9999), ["vectors", "0.999900", "0.99999"]),
        (PRECISION_FP32, _difference(hidden_min_cosine=0.9999), ["hidden", "rows", "0.999900", "0.99999"]),
        # The tolerance is relative for outputs above 1.
        (PRECISION_FP32, _difference((1e-3, 1e-5), (1e-2, 1e-4)), None),
        (PRECISION_FP32, _difference((1.1e-5, 2e-5)), ["pooled", "1.10e-05", "1e-05"]),
        (
            PRECISION_FP32,
            _difference(hidden=(2e-4, 1.1e-4)),
            ["hidden", "1.10e-04", "0.0001"],
        ),
        (PRECISION_FP16, _difference((0.5, 0.5), (0.5, 0.5), 0.9999), None),
        (PRECISION_FP16, _difference(min_cosine=0.9998), ["cosine", "0.999800", "0.9999"]),
        (PRECISION_FP16, _difference(hidden_min_cosine=0.9899), ["hidden", "rows", "0.989900", "0.99"]),
        (PRECISION_FP16, _difference(min_cosine=float("nan")), ["cosine", "nan", "0.9999"]),
        (PRECISION_INT8, _difference((0.5, 0.5), (0.5, 0.5), 0.99), None),
        (PRECISION_INT8, _difference(min_cosine=0.9899), ["cosine", "0.989900", "0.99"]),
        (PRECISION_INT8, _difference(hidden_min_cosine=0.8999), ["hidden", "rows", "0.899900", "0.9"]),
        # Logits of up to 11 that are wrong by 5.4, and logits of the quantised encoders that were measured.
        (PRECISION_FP16, _difference(logits=(5.4, 0.49)), ["logits", "4.90e-01", "0.02"]),
        (PRECISION_INT8, _difference(logits=(5.4, 0.49)), ["logits", "4.90e-01", "0.1"]),
        (PRECISION_INT8, _difference(logits=(0.69, 0.044)), None),
        (PRECISION_INT8, _difference(logits=(0.09, 0.3)), None),
    ],
)
def test_a_violation_names_the_output_its_difference_and_the_limit(
    precision: Precision, measured: Difference, facts: list[str] | None
) -> None:
    message = violation(measured, precision)
    if facts is None:
        assert message is None
    else:
        assert message is not None
        assert [fact for fact in facts if fact not in message.replace(",", "").split()] == []
