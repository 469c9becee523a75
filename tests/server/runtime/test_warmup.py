"""Before it serves, a graph is checked on the golden inputs and timed on shapes it can take."""

from typing import cast

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_server.runtime.bundle import Golden
from headwaiter_server.runtime.graph import EncoderGraph, Outputs
from headwaiter_server.runtime.packing import PackedBatch
from headwaiter_server.runtime.warmup import check_golden, time_batches


class Graph:
    """Answers with ids as they are; pools by their mean. Keeps the batches."""

    def __init__(self) -> None:
        self.batches: list[PackedBatch] = []

    def run(self, batch: PackedBatch, *, hidden: bool) -> Outputs:
        self.batches.append(batch)
        rows = batch.rows.reshape(batch.tokens, -1).astype(np.float32)
        return Outputs(np.stack([part.mean(axis=0) for part in batch.split(rows)]), rows if hidden else None)


def _golden(lengths: list[int], error: float = 0.0) -> Golden:
    sequences: list[NDArray[np.generic]] = [np.full(length, index + 1) for index, length in enumerate(lengths)]
    hidden = np.concatenate(sequences)[:, None].astype(np.float32)
    pooled = np.array([[index + 1] for index in range(len(lengths))], np.float32)
    pooled[-1] += error
    return Golden(sequences, Outputs(pooled, hidden))


@given(lengths=st.lists(st.integers(1, 1500), min_size=1, max_size=8))
def test_every_golden_input_is_run_in_batches_of_bounded_size(lengths: list[int]) -> None:
    graph = Graph()
    measured = check_golden(cast(EncoderGraph, graph), _golden(lengths), normalized=False)
    assert (measured.pooled_max_abs, measured.hidden_max_abs) == (0, 0)
    assert [length for batch in graph.batches for length in batch.lengths] == lengths
    assert all(batch.tokens <= 1024 or batch.sequences == 1 for batch in graph.batches)


def test_a_wrong_golden_answer_in_any_batch_is_measured() -> None:
    measured = check_golden(cast(EncoderGraph, Graph()), _golden([600, 600, 600], error=-1.5), normalized=False)
    assert (measured.pooled_max_abs, measured.pooled_max_relative) == (1.5, 0.75)
    assert measured.hidden_max_abs == 0


def test_golden_answers_of_unit_length_are_compared_to_vectors_of_unit_length() -> None:
    golden = _golden([3, 4])
    unit = Golden(golden.sequences, Outputs(np.ones((2, 1), np.float32), golden.answers.hidden))
    assert check_golden(cast(EncoderGraph, Graph()), unit, normalized=True).pooled_max_abs == 0
    assert check_golden(cast(EncoderGraph, Graph()), unit, normalized=False).pooled_max_abs == 1


@given(max_tokens=st.integers(1, 600), tokens=st.integers(1, 2000))
def test_timed_batches_are_such_as_the_model_takes_and_the_budget_allows(max_tokens: int, tokens: int) -> None:
    graph = Graph()
    manifest = Manifest(vocabulary_size=7, max_tokens=max_tokens)
    timed = list(time_batches(cast(EncoderGraph, graph), manifest, tokens, cells=256 * tokens))
    for batch, seconds in timed:
        assert batch.longest_tokens <= max_tokens
        assert batch.tokens <= tokens
        assert batch.cells <= 256 * tokens or batch.sequences == 1
        assert 0 <= batch.rows.min() <= batch.rows.max() < 7
        assert 0 <= seconds < float("inf")
    # Both few long and many short sequences, or a fit could not tell tokens from cells.
    assert max(batch.longest_tokens for batch, _ in timed) == min(max_tokens, tokens)
    assert max(batch.sequences for batch, _ in timed) >= tokens // 16


def test_a_model_of_features_is_timed_on_features() -> None:
    timed = list(time_batches(cast(EncoderGraph, Graph()), Manifest(feature_width=3, max_tokens=8), 32, 999))
    assert all(batch.rows.shape == (batch.tokens, 3) for batch, _ in timed)
