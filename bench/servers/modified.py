"""Headwaiter's server with one part replaced, to measure the cost of the others.

Run it with `python -m bench.servers.modified KIND BUNDLE` and the flags of headwaiter-server. The kinds are:

- null: the model takes no time. The pooled vector of a sequence is [sum of its ids, number of its ids, other numbers],
  scaled to unit length if the model normalizes; a hidden row is [the id, 1, 0, …].
- timed: as null, but a batch takes 0.6 ms and 0.5 µs a token, in which the CPU is free, as with a small model on a GPU.
- poisoned: the graph fails on poisoned sequences.
"""

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np

from headwaiter_server import cli
from headwaiter_server.models import loading
from headwaiter_server.runtime.graph import EncoderGraph, GraphOutputs, at_once
from headwaiter_server.runtime.model import Model, open_model
from headwaiter_server.runtime.packing import PackedBatch

# A poisoned sequence; no trace contains it.
POISON = np.full(24, 1)


class NullGraph(EncoderGraph):
    """A graph whose outputs identify the sequences, at no cost but that of waiting.

    Args:
        width: width of the rows.
        batch_s: time to wait for each batch.
        token_s: time to wait for each token.
    """

    def __init__(self, width: int, batch_s: float = 0.0, token_s: float = 0.0) -> None:
        self._width, self._batch_s, self._token_s = width, batch_s, token_s
        # Zeros would be shorter in JSON than the numbers of a real model. At unit length, these numbers have its scale.
        self._vector = 1000 * np.random.default_rng(0).standard_normal(width, np.float32)
        self.turn = at_once
        # The batches of a GPU are timed by the clock, and not by the CPU time that they take.
        self.on_gpu = True

    @property
    def hidden_is_optional(self) -> bool:
        """True: the graph has hidden rows and a pooled output."""
        return True

    @property
    def variable_length(self) -> bool:
        """True: sequences of different lengths share a batch without padding."""
        return True

    @property
    def attends_in_blocks(self) -> bool:
        """True: there are no attention scores."""
        return True

    def prepare(self, batch: PackedBatch) -> PackedBatch:
        """Return the batch: the graph needs no other inputs."""
        return batch

    def run(self, batch: PackedBatch, *, hidden: bool) -> GraphOutputs:
        """Return the outputs for a batch of token ids."""
        if self._batch_s:
            time.sleep(self._batch_s + self._token_s * batch.tokens)
        pooled = np.tile(self._vector, (batch.sequences, 1))
        pooled[:, 0] = np.add.reduceat(batch.rows, batch.starts)
        pooled[:, 1] = batch.lengths
        if not hidden:
            return GraphOutputs(pooled, None)
        rows = np.zeros((batch.tokens, self._width), np.float32)
        rows[:, 0], rows[:, 1] = batch.rows, 1
        return GraphOutputs(pooled, rows)


def _null(batch_s: float = 0.0, token_s: float = 0.0) -> AbstractContextManager[object]:
    """Open and check the bundle as usual, and then replace its graph."""

    def open_null_model(*arguments: Any, **options: Any) -> Model:
        model = open_model(*arguments, **options)
        return replace(model, graph=NullGraph(model.bundle.manifest.width, batch_s, token_s))

    return patch.object(loading, "open_model", open_null_model)


def _poisoned() -> AbstractContextManager[object]:
    run = EncoderGraph.run

    def run_or_fail(graph: EncoderGraph, batch: PackedBatch, *, hidden: bool) -> GraphOutputs:
        if any(np.array_equal(sequence, POISON) for sequence in batch.split(batch.rows)):
            raise RuntimeError("the batch holds a poisoned sequence")
        return run(graph, batch, hidden=hidden)

    return patch.object(EncoderGraph, "run", run_or_fail)


_KINDS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "null": _null,
    "timed": partial(_null, 0.6e-3, 0.5e-6),
    "poisoned": _poisoned,
}


def main() -> int:
    """Serve as the command line says."""
    with _KINDS[sys.argv.pop(1)]():
        return cli.main()


if __name__ == "__main__":
    sys.exit(main())
