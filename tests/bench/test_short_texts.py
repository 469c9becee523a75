"""The study of short texts counts results that are missing, out of order or of another text."""

import numpy as np
import pytest

from bench.servers.modified import NullGraph
from bench.studies.short_texts import Rows, count_wrong, row
from headwaiter_client import ModelRef, SequenceEncoding
from headwaiter_server.runtime.packing import pack

EXPECTED: Rows = np.array([[0, 3, 40], [1, 3, 41], [2, 4, 42]])


def test_the_sum_of_the_ids_is_recovered_from_a_vector_of_unit_length() -> None:
    ids = np.random.default_rng(0).integers(0, 30_522, 256)
    pooled = NullGraph(384).run(pack([ids]), hidden=False).pooled
    assert pooled is not None
    vector = pooled[0] / np.linalg.norm(pooled[0])
    encoding = SequenceEncoding(5, vector, None, None, len(ids), None, None, ModelRef("null", ""))
    assert row(encoding) == (5, 256, ids.sum())


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        (EXPECTED, 0),
        (EXPECTED * [[0], [1], [1]], 1),
        (EXPECTED[[1, 0, 2]], 2),
        (np.add(EXPECTED, [0, 0, 1]), 3),
    ],
    ids=["correct", "missing", "out of order", "other texts"],
)
def test_wrong_results_are_counted(found: Rows, wrong: int) -> None:
    assert count_wrong(found, EXPECTED) == wrong
