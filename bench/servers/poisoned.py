"""Headwaiter's own server with a graph that fails on poisoned sequences, to tell what they cost the others.

Run as `python -m bench.servers.poisoned BUNDLE` with the flags of headwaiter-server.
"""

import sys
from unittest.mock import patch

import numpy as np

from headwaiter_server import cli
from headwaiter_server.runtime.graph import EncoderGraph, Outputs
from headwaiter_server.runtime.packing import PackedBatch

# A run of ids that no trace has.
POISON = np.full(24, 1)


def main() -> int:
    """Serve."""
    run = EncoderGraph.run

    def choke(graph: EncoderGraph, batch: PackedBatch, *, hidden: bool) -> Outputs:
        if any(np.array_equal(sequence, POISON) for sequence in batch.split(batch.rows)):
            raise RuntimeError("the model chokes")
        return run(graph, batch, hidden=hidden)

    with patch.object(EncoderGraph, "run", choke):
        return cli.main()


if __name__ == "__main__":
    sys.exit(main())
