"""Headwaiter's own server with a model that takes no time, to tell what everything around a model costs.

Run as `python -m bench.servers.null BUNDLE` with the flags of headwaiter-server. The bundle is opened and checked as
usual; then a stand-in takes the place of its graph. Of token ids its pooled vector is [their sum, their number, 0, …],
scaled to unit length where the model's are, and a hidden row is [the id, 1, 0, …].
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

# A batch of this id alone keeps the device busy for so long: to see what becomes of those that wait meanwhile.
PAUSE_ID, PAUSE_S = 7, 0.5


class NullGraph(EncoderGraph):
    """Tells sequences apart, and takes no time for it."""

    def __init__(self, width: int) -> None:
        self._width = width

    @property
    def pools(self) -> bool:
        """Whether there is a pooled output."""
        return True

    @property
    def variable_length(self) -> bool:
        """Whether lengths may differ at no cost."""
        return True

    def run(self, batch: PackedBatch, *, hidden: bool) -> Outputs:
        """Answer a batch of token ids."""
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
    """Open a bundle as `open_model` does, and put the stand-in in its graph's place."""
    model = open_model(*arguments, **options)
    return replace(model, graph=NullGraph(model.bundle.manifest.width))


def main() -> int:
    """Serve."""
    with patch.object(loading, "open_model", open_null_model):
        return cli.main()


if __name__ == "__main__":
    sys.exit(main())
