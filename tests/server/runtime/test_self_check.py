"""Before a graph serves, it is checked on the golden inputs."""

from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from headwaiter_proto.encoder_pb2 import (
    ISOLATION_MIXED,
    ISOLATION_ONE_LENGTH,
    ISOLATION_ONE_SEQUENCE,
    PRECISION_FP32,
    Isolation,
)
from headwaiter_server.runtime.golden_reader import Golden
from headwaiter_server.runtime.graph import EncoderGraph, GraphOutputs, at_once
from headwaiter_server.runtime.numeric_tolerances import violation
from headwaiter_server.runtime.packing import PackedBatch
from headwaiter_server.runtime.self_check import check_golden, keeps_apart


class Graph:
    """A graph whose hidden rows are the token ids and whose pooled vectors are their means.

    Attributes:
        batches: the batches that have run.
    """

    turn = staticmethod(at_once)

    def __init__(self) -> None:
        self.batches: list[PackedBatch] = []

    def prepare(self, batch: PackedBatch) -> PackedBatch:
        return batch

    def run(self, batch: PackedBatch, *, hidden: bool) -> GraphOutputs:
        self.batches.append(batch)
        rows = batch.rows.reshape(batch.tokens, -1).astype(np.float32)
        return GraphOutputs(np.stack([part.mean(axis=0) for part in batch.split(rows)]), rows if hidden else None)


def _golden(lengths: list[int], error: float = 0.0) -> Golden:
    sequences: list[NDArray[np.generic]] = [np.full(length, index + 1) for index, length in enumerate(lengths)]
    hidden = np.concatenate(sequences)[:, None].astype(np.float32)
    pooled = np.array([[index + 1] for index in range(len(lengths))], np.float32)
    pooled[-1] += error
    return Golden(sequences, GraphOutputs(pooled, hidden))


@given(lengths=st.lists(st.integers(1, 1500), min_size=1, max_size=8))
def test_every_golden_input_is_run_in_batches_of_bounded_size(lengths: list[int]) -> None:
    graph = Graph()
    measured = check_golden(cast(EncoderGraph, graph), _golden(lengths), normalized=False)
    assert (measured.pooled_max_abs, measured.hidden_max_abs) == (0, 0)
    assert [length for batch in graph.batches for length in batch.lengths] == lengths
    for batch in graph.batches:
        cells = batch.sequences * batch.longest_tokens**2
        assert (batch.tokens <= 512 and cells <= 512**2) or batch.sequences == 1


@given(lengths=st.lists(st.integers(1, 3), min_size=1, max_size=8))
def test_golden_inputs_share_a_batch_only_where_the_model_allows_it(lengths: list[int]) -> None:
    for isolation, equal_lengths, most in ((ISOLATION_ONE_LENGTH, 1, 8), (ISOLATION_ONE_SEQUENCE, 1, 1)):
        graph = Graph()
        measured = check_golden(cast(EncoderGraph, graph), _golden(lengths), normalized=False, isolation=isolation)
        assert (measured.pooled_max_abs, measured.hidden_max_abs) == (0, 0)
        assert [length for batch in graph.batches for length in batch.lengths] == lengths
        assert all(len(set(batch.lengths)) == equal_lengths and batch.sequences <= most for batch in graph.batches)


class Classifier(Graph):
    """A graph that gives logits alone, the first token id of each sequence."""

    def run(self, batch: PackedBatch, *, hidden: bool) -> GraphOutputs:
        self.batches.append(batch)
        return GraphOutputs(None, None, [part[:1, None].astype(np.float32) for part in batch.split(batch.rows)])


@pytest.mark.parametrize("error", [0.0, 0.5])
def test_logits_alone_are_compared(error: float) -> None:
    sequences: list[NDArray[np.generic]] = [np.array([4, 5]), np.array([6])]
    golden = Golden(
        sequences, GraphOutputs(None, None, [np.array([[4.0]], np.float32), np.array([[6 + error]], np.float32)])
    )
    measured = check_golden(cast(EncoderGraph, Classifier()), golden, normalized=False)
    assert (measured.logits_max_abs, measured.min_cosine) == (error, 1.0)
    assert (violation(measured, PRECISION_FP32) is None) == (error == 0)


def test_a_wrong_golden_output_in_any_batch_is_measured() -> None:
    measured = check_golden(cast(EncoderGraph, Graph()), _golden([600, 600, 600], error=-1.5), normalized=False)
    assert (measured.pooled_max_abs, measured.pooled_max_relative) == (1.5, 0.75)
    assert measured.hidden_max_abs == 0


def test_outputs_are_normalized_before_they_are_compared_with_normalized_golden_outputs() -> None:
    golden = _golden([3, 4])
    unit = Golden(golden.sequences, GraphOutputs(np.ones((2, 1), np.float32), golden.outputs.hidden))
    assert check_golden(cast(EncoderGraph, Graph()), unit, normalized=True).pooled_max_abs == 0
    assert check_golden(cast(EncoderGraph, Graph()), unit, normalized=False).pooled_max_abs == 1


class Leaking(Graph):
    """Adds a little of the first row of the batch to all results, and perhaps noise of its own."""

    def __init__(self, share: float, noise: float) -> None:
        super().__init__()
        self.share, self.noise = share, noise

    def run(self, batch: PackedBatch, *, hidden: bool) -> GraphOutputs:
        outputs = super().run(batch, hidden=hidden)
        added = self.share * float(batch.rows[0]) + self.noise * len(self.batches)
        assert outputs.pooled is not None
        return GraphOutputs(outputs.pooled + np.float32(added), outputs.hidden)


@pytest.mark.parametrize("isolation", [ISOLATION_MIXED, ISOLATION_ONE_LENGTH])
@pytest.mark.parametrize(("share", "noise", "apart"), [(0, 0, True), (1e-5, 0, False), (0, 1e-5, True)])
def test_a_device_that_lets_sequences_change_each_other_is_found(
    share: float, noise: float, apart: bool, isolation: Isolation
) -> None:
    graph, lengths = Leaking(share, noise), (1, 2, 3, 40, 300)
    sequences: list[NDArray[np.generic]] = [np.arange(1, length + 1) for length in lengths]
    golden = Golden(sequences, GraphOutputs(None, None))
    assert keeps_apart(cast(EncoderGraph, graph), golden, isolation) == apart
    assert {tuple(batch.lengths) for batch in graph.batches} == {
        (3, 3, 3) if isolation == ISOLATION_ONE_LENGTH else (40, 3, 2)
    }
