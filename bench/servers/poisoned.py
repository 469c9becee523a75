"""Headwaiter's server with a graph that fails on poisoned sequences: it measures their cost for other sequences.

Run it with `python -m bench.servers.poisoned BUNDLE` and the flags of headwaiter-server.
"""

import sys
from unittest.mock import patch

import numpy as np

from headwaiter_server import cli
from headwaiter_server.runtime.graph import EncoderGraph, Outputs
from headwaiter_server.runtime.packing import PackedBatch

# A poisoned sequence; no trace contains it.
POISON = np.full(24, 1)


def main() -> int:
    """Serve as the command line says."""
    run = EncoderGraph.run

    def run_or_fail(graph: EncoderGraph, batch: PackedBatch, *, hidden: bool) -> Outputs:
        if any(np.array_equal(sequence, POISON) for sequence in batch.split(batch.rows)):
            raise RuntimeError("the batch holds a poisoned sequence")
        return run(graph, batch, hidden=hidden)

    with patch.object(EncoderGraph, "run", run_or_fail):
        return cli.main()


if __name__ == "__main__":
    sys.exit(main())
