"""The model of no time tells sequences apart, so that a mixed-up answer would be seen."""

import numpy as np
import pytest

from bench.servers.null import PAUSE_ID, NullGraph
from headwaiter_server.runtime.packing import pack


def test_a_vector_has_the_sum_of_a_sequences_ids_and_their_number() -> None:
    outputs = NullGraph(4).run(pack([np.array([5, 9]), np.array([3])]), hidden=True)
    assert outputs.pooled is not None
    assert outputs.hidden is not None
    assert outputs.pooled.tolist() == [[14, 2, 0, 0], [3, 1, 0, 0]]
    assert outputs.hidden.tolist() == [[5, 1, 0, 0], [9, 1, 0, 0], [3, 1, 0, 0]]


@pytest.mark.parametrize(("ids", "pauses"), [([PAUSE_ID], 1), ([PAUSE_ID, PAUSE_ID], 0), ([1], 0)])
def test_one_id_alone_keeps_the_device(monkeypatch: pytest.MonkeyPatch, ids: list[int], pauses: int) -> None:
    slept: list[float] = []
    monkeypatch.setattr("bench.servers.null.time.sleep", slept.append)
    NullGraph(2).run(pack([np.array(ids)]), hidden=False)
    assert len(slept) == pauses
