"""Headwaiter's server with a null model, which takes no time: it measures the cost of everything around the model.

Run it with `python -m bench.servers.null BUNDLE` and the flags of headwaiter-server. The server opens and checks the
bundle as usual, and then replaces its graph. The pooled vector of a sequence is [sum of its ids, number of its ids, 0,
…], scaled to unit length if the model normalizes; a hidden row is [the id, 1, 0, …].
"""

import sys
import time
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from headwaiter_server import cli
from headwaiter_server.models import loading
from headwaiter_server.runtime.graph import EncoderGraph, Outputs
from headwaiter_server.runtime.model import Model, open_model
from headwaiter_server.runtime.packing import PackedBatch

# A batch of only this id blocks the device for PAUSE_S, so that other requests wait.
PAUSE_ID, PAUSE_S = 7, 0.5


class NullGraph(EncoderGraph):
    """A graph whose outputs identify the sequences, at no cost."""

    def __init__(self, width: int) -> None:
        self._width = width

    @property
    def pools(self) -> bool:
        """True: the graph has a pooled output."""
        return True

    @property
    def variable_length(self) -> bool:
        """True: sequences of different lengths share a batch without padding."""
        return True

    def run(self, batch: PackedBatch, *, hidden: bool) -> Outputs:
        """Return the outputs for a batch of token ids."""
        if batch.tokens == 1 and batch.rows[0] == PAUSE_ID:
            time.sleep(PAUSE_S)
        pooled = np.zeros((batch.sequences, self._width), np.float32)
        pooled[:, 0] = np.add.reduceat(batch.rows, batch.starts)
        pooled[:, 1] = batch.lengths
        if not hidden:
            return Outputs(pooled, None)
        rows = np.zeros((batch.tokens, self._width), np.float32)
        rows[:, 0], rows[:, 1] = batch.rows, 1
        return Outputs(pooled, rows)


def open_null_model(*arguments: Any, **options: Any) -> Model:
    """Open a bundle with `open_model`, and replace its graph."""
    model = open_model(*arguments, **options)
    return replace(model, graph=NullGraph(model.bundle.manifest.width))


def main() -> int:
    """Serve as the command line says."""
    with patch.object(loading, "open_model", open_null_model):
        return cli.main()


if __name__ == "__main__":
    sys.exit(main())
