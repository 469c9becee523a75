"""The cost model is measured: what went in comes out, and no amount of noise makes work free."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwaiter_server.batching.cost import CostModel, Sample, fit

SHAPES = [(1, 1), (1, 16), (1, 256), (32, 16), (2, 256), (8, 64), (4, 128)]
coefficients = st.floats(1e-6, 1e-2)


def _seconds(cost: CostModel, sequences: int, length: int) -> float:
    return cost.seconds(sequences, sequences * length, length, sequences * length**2)


def _samples(cost: CostModel, noise: list[float]) -> list[Sample]:
    return [
        Sample(sequences * length, sequences * length**2, factor * _seconds(cost, sequences, length))
        for (sequences, length), factor in zip(SHAPES, noise, strict=True)
    ]


@given(launch_s=coefficients, token_s=coefficients, cell_s=coefficients)
def test_exact_measurements_give_back_the_coefficients(launch_s: float, token_s: float, cell_s: float) -> None:
    fitted = fit(_samples(CostModel(launch_s, token_s, 0.0, cell_s), [1.0] * len(SHAPES)))
    for sequences, length in SHAPES:
        exact_s = launch_s + token_s * sequences * length + cell_s * sequences * length**2
        assert _seconds(fitted, sequences, length) == pytest.approx(exact_s, rel=1e-6)


def test_the_coefficients_of_a_usual_cpu_are_recovered() -> None:
    cost = CostModel(launch_s=3e-3, token_s=1.1e-4, padded_s=0.0, cell_s=5e-7)
    fitted = fit(_samples(cost, [1.0] * len(SHAPES)))
    assert (fitted.launch_s, fitted.token_s, fitted.cell_s) == pytest.approx((3e-3, 1.1e-4, 5e-7))


@given(seconds=st.lists(st.floats(1e-6, 10.0), min_size=len(SHAPES), max_size=len(SHAPES)))
def test_whatever_was_measured_no_term_is_negative_and_work_costs_something(seconds: list[float]) -> None:
    fitted = fit(_samples(CostModel(1.0, 0.0, 0.0, 0.0), seconds))
    assert min(fitted.launch_s, fitted.token_s, fitted.cell_s) >= 0
    assert _seconds(fitted, 1, 1) > 0


@given(noise=st.lists(st.floats(0.8, 1.25), min_size=len(SHAPES), max_size=len(SHAPES)))
def test_noisy_measurements_give_costs_that_are_off_by_little_more_than_the_noise(noise: list[float]) -> None:
    cost = CostModel(launch_s=3e-3, token_s=1.1e-4, padded_s=0.0, cell_s=5e-7)
    fitted = fit(_samples(cost, noise))
    for sequences, length in SHAPES:
        exact_s = _seconds(cost, sequences, length)
        assert _seconds(fitted, sequences, length) == pytest.approx(exact_s, rel=0.5)


def test_measurements_of_a_single_shape_still_give_its_cost() -> None:
    assert fit([Sample(4, 4, 0.5)] * 3).seconds(4, 4, 1, 4) == pytest.approx(0.5)
