"""Results of two models can be compared if what decides them is the same, whatever else the bundles hold."""

import pytest

from headwaiter_client import ModelRef

MINE = ModelRef("mine", "d", "fp32", "1", "r")


@pytest.mark.parametrize(
    ("other", "comparable"),
    [
        (MINE, True),
        # Another export of the same model, under another name.
        (ModelRef("new", "another", "fp32", "2", "r"), True),
        # A replica whose server is older, with the same bundle.
        (ModelRef("mine", "d", "fp32", "1"), True),
        (ModelRef("mine", "another", "fp32", "1"), False),
        (ModelRef("mine", "another", "fp32", "1", "other"), False),
        (ModelRef("mine", "d", "int8", "1", "other"), False),
        (ModelRef("mine", "d", "int8", "1", "r"), False),
    ],
)
def test_results_are_comparable(other: ModelRef, comparable: bool) -> None:
    assert MINE.is_comparable(other) is other.is_comparable(MINE) is comparable


def test_two_older_servers_with_other_bundles_are_not_comparable() -> None:
    assert not ModelRef("mine", "d", "fp32").is_comparable(ModelRef("mine", "another", "fp32"))
