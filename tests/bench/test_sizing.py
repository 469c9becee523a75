"""The table of replicas for a rate is the one in the documentation, and its bounds are the measured ones."""

import pytest

from bench.studies import sizing
from tests.support.documents import DOCS


def test_the_table_of_the_page_is_computed() -> None:
    assert sizing.table() in (DOCS / "how-to" / "plan-capacity.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("texts_per_s", "card_texts_per_s", "replicas", "bound"),
    [
        (100, 1_000, 2, "one is enough; one is spare"),
        (7_000, 1_000, 11, "cards"),
        (7_000, 700, 16, "cards"),
        (1_000_000, 1_000_000, 77, "front ends"),
    ],
)
def test_the_slowest_part_decides(texts_per_s: int, card_texts_per_s: float, replicas: int, bound: str) -> None:
    assert sizing.replicas(texts_per_s, card_texts_per_s) == (replicas, bound)
