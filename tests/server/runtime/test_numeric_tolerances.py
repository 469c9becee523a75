"""Differences from PyTorch are measured correctly, and a difference over the tolerance is reported."""

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.typing import NDArray

from headwaiter_proto.encoder_pb2 import PRECISION_FP16, PRECISION_FP32, PRECISION_INT8, Precision
from headwaiter_server.runtime.graph import Outputs
from headwaiter_server.runtime.numeric_tolerances import Difference, difference, normalize_pooled, violation


def _difference(
    pooled: tuple[float, float] = (0.0, 0.0), hidden: tuple[float, float] = (0.0, 0.0), min_cosine: float = 1.0
) -> Difference:
    """Return a difference with (absolute, relative) differences of pooled vectors and of hidden rows."""
    return Difference(pooled[0], hidden[0], pooled[1], hidden[1], min_cosine, mean_cosine=1.0)


def _outputs(pooled: object, hidden: object) -> Outputs:
    return Outputs(None if pooled is None else np.array(pooled, np.float32), np.array(hidden, np.float32))


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


def test_equal_outputs_have_no_difference() -> None:
    outputs = _outputs([[3, 4], [1, 0]], [[1, 2], [3, 4], [5, 6]])
    assert difference(outputs, outputs) == pytest.approx(_difference())


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
        (PRECISION_FP32, _difference((1e-5, 1.0), (1e-4, 1.0), -1.0), None),
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
        (PRECISION_FP16, _difference(min_cosine=float("nan")), ["cosine", "nan", "0.9999"]),
        (PRECISION_INT8, _difference((0.5, 0.5), (0.5, 0.5), 0.99), None),
        (PRECISION_INT8, _difference(min_cosine=0.9899), ["cosine", "0.989900", "0.99"]),
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
