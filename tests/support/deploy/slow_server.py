"""A server whose batches take longer, as a file says: the name of each slow model, and the seconds of its batches.

SLOW_MODELS=FILE python -m tests.support.deploy.slow_server [flags of headwaiter-server]
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

from headwaiter_server import cli
from headwaiter_server.metrics.recorder import Recorder
from headwaiter_server.runtime.graph import EncoderGraph, GraphOutputs
from headwaiter_server.runtime.packing import PackedBatch
from headwaiter_server.scheduling.model_queue import ModelQueue
from headwaiter_server.scheduling.scheduler import Scheduler

# The environment variable that names the file, in JSON.
SLOW_MODELS = "SLOW_MODELS"


def main() -> int:
    """Serve as the command line says."""
    file, names = Path(os.environ[SLOW_MODELS]), dict[Any, str]()
    run, add_model, model = EncoderGraph.run, Scheduler.add_model, Recorder.model
    served: list[str] = []

    def note_model(recorder: Recorder, name: str, version: str) -> Any:
        served.append(name)
        return model(recorder, name, version)

    def note_sessions(scheduler: Scheduler, sessions: Any, *arguments: Any) -> ModelQueue:
        # The repository asks for the recorder of a model just before it adds the model.
        names.update({session.graph: served[-1] for session in sessions.values()})
        return add_model(scheduler, sessions, *arguments)

    def run_slowly(graph: EncoderGraph, batch: PackedBatch, *, hidden: bool) -> GraphOutputs:
        outputs = run(graph, batch, hidden=hidden)
        time.sleep(json.loads(file.read_text()).get(names.get(graph), 0.0))
        return outputs

    with (
        patch.object(EncoderGraph, "run", run_slowly),
        patch.object(Scheduler, "add_model", note_sessions),
        patch.object(Recorder, "model", note_model),
    ):
        return cli.main()


if __name__ == "__main__":
    sys.exit(main())
