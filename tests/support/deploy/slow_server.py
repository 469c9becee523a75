"""A server whose batches take half a second longer while a file exists.

SLOW_FILE=FILE python -m tests.support.deploy.slow_server [flags of headwaiter-server]
"""

import os
import sys
import time
from pathlib import Path
from unittest.mock import patch

from headwaiter_server import cli
from headwaiter_server.runtime.graph import EncoderGraph, GraphOutputs
from headwaiter_server.runtime.packing import PackedBatch

# The environment variable that names the file.
SLOW_FILE = "SLOW_FILE"


def main() -> int:
    """Serve as the command line says."""
    file, run = Path(os.environ[SLOW_FILE]), EncoderGraph.run

    def run_slowly(graph: EncoderGraph, batch: PackedBatch, *, hidden: bool) -> GraphOutputs:
        outputs = run(graph, batch, hidden=hidden)
        if file.exists():
            time.sleep(0.5)
        return outputs

    with patch.object(EncoderGraph, "run", run_slowly):
        return cli.main()


if __name__ == "__main__":
    sys.exit(main())
