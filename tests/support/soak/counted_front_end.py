"""The program of a front end, which also counts the asyncio tasks and the calls that its process holds."""

import asyncio
import gc
from typing import Any
from unittest.mock import patch

from prometheus_client import Gauge

from headwaiter_server.metrics.recorder import Recorder
from headwaiter_server.processes import front_end_process


class SoakRecorder(Recorder):
    """Also counts asyncio tasks and calls."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        loop = asyncio.get_running_loop()
        tasks = Gauge("soak_asyncio_tasks", "Unfinished asyncio tasks.", registry=self.registry)
        tasks.set_function(lambda: len(asyncio.all_tasks(loop)))
        calls = Gauge("soak_held_calls", "Calls, finished or not, that Python still holds.", registry=self.registry)
        calls.set_function(lambda: sum(type(each).__name__ == "_HandlerCallDetails" for each in gc.get_objects()))


if __name__ == "__main__":
    with patch.object(front_end_process, "Recorder", SoakRecorder):
        front_end_process.main()
