"""What shares a batch with a sequence does not matter to it, whatever the mask."""

from pathlib import Path

import numpy as np
import pytest

from headwaiter_export.config import EncoderConfig, Mask
from tests.export.helpers import FP32_GRAPHS, Runtime, draw, hidden_of, run
from tests.oracle import Array

GRAPHS = [
    *FP32_GRAPHS,
    pytest.param("packed-cuda.fp16.onnx", "cuda", id="packed-cuda-fp16", marks=pytest.mark.gpu),
]
LENGTHS = (9, 5, 48, 2)
# Differences in the last bits, of a largest value of 1.
LAST_BITS = 1e-6

Exported = tuple[Path, EncoderConfig]


@pytest.fixture(params=Mask)
def exported(request: pytest.FixtureRequest) -> Exported:
    """A bundle of each mask, and its configuration."""
    name = {Mask.NONE: "feature", Mask.CAUSAL: "causal", Mask.SELF_EXCLUDING: "self_excluding"}[request.param]
    return request.getfixturevalue(f"{name}_bundle"), request.getfixturevalue(f"{name}_encoder").config


def assert_equal_to_the_last_bits(actual: Array, expected: Array) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=LAST_BITS * np.abs(expected).max())


@pytest.mark.parametrize(("file", "runtime"), GRAPHS)
@pytest.mark.parametrize("poison", [1e4, -1e4, 3e38, np.inf, np.nan])
# The reference evaluator computes in numpy, which warns of what is not finite.
@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_a_result_is_bit_for_bit_the_same_whatever_its_neighbours_hold(
    file: str, runtime: Runtime, poison: float, exported: Exported
) -> None:
    bundle, config = exported
    sequences = draw(config, LENGTHS)
    before = run(bundle / file, runtime, sequences)
    for kept, length in enumerate(LENGTHS):
        poisoned = [each if i == kept else np.full_like(each, poison) for i, each in enumerate(sequences)]
        after = run(bundle / file, runtime, poisoned)
        first = sum(LENGTHS[:kept])
        for old, new, own in (
            (before.pooled, after.pooled, slice(kept, kept + 1)),
            (before.hidden, after.hidden, slice(first, first + length)),
        ):
            assert old is not None
            assert new is not None
            assert np.isfinite(new[own]).all()
            assert old[own].tobytes() == new[own].tobytes()


@pytest.mark.parametrize(("file", "runtime"), FP32_GRAPHS)
def test_a_sequence_alone_has_the_result_it_has_in_a_batch(file: str, runtime: Runtime, exported: Exported) -> None:
    bundle, config = exported
    sequences = draw(config, LENGTHS)
    for sequence, together in zip(sequences, hidden_of(bundle / file, runtime, sequences), strict=True):
        (alone,) = hidden_of(bundle / file, runtime, [sequence])
        assert_equal_to_the_last_bits(alone, together)


@pytest.mark.parametrize(("file", "runtime"), FP32_GRAPHS)
def test_the_order_of_the_sequences_in_a_batch_does_not_matter(file: str, runtime: Runtime, exported: Exported) -> None:
    bundle, config = exported
    sequences = draw(config, LENGTHS)
    forth, back = hidden_of(bundle / file, runtime, sequences), hidden_of(bundle / file, runtime, sequences[::-1])
    for one, other in zip(forth, back[::-1], strict=True):
        assert_equal_to_the_last_bits(one, other)
