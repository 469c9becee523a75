"""Headwaiter's server on a device that fails in the ways of real devices.

Run it with `python -m tests.support.soak.faulty_server BUNDLE` and the flags of headwaiter-server. A poisoned sequence
always fails its batch. START_FAULTS starts the faults of `FAULT_INTERVALS_S`, STOP_FAULTS stops them. The metrics page
also counts the faults, and the asyncio tasks and calls that the server's processes hold.
"""

import signal
import sys
import time
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
from prometheus_client import Gauge

from headwaiter_server import app, cli
from headwaiter_server.processes import front_end_supervisor
from headwaiter_server.runtime.graph import EncoderGraph, GraphOutputs
from headwaiter_server.runtime.packing import PackedBatch
from tests.support.soak.counted_front_end import SoakRecorder

START_FAULTS, STOP_FAULTS = signal.SIGUSR1, signal.SIGUSR2
# The tokenizer puts [CLS] first, so no text has these ids.
POISON = [1] * 24
FAULT_INTERVALS_S = {"slow": 1.0, "out of memory": 2.0}
SLOW_S = 0.3


class FaultyDevice:
    """Decides for each batch whether the device fails, by the clock."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys([*FAULT_INTERVALS_S, "poison"], 0)
        self._due_s: dict[str, float] = {}

    def start(self) -> None:
        """Let faults happen from now on."""
        self._due_s = {fault: time.monotonic() + interval_s for fault, interval_s in FAULT_INTERVALS_S.items()}

    def stop(self) -> None:
        """Let no more faults happen."""
        self._due_s = {}

    def before_run(self, batch: PackedBatch) -> None:
        """Raise or sleep if the device fails on this batch.

        Raises:
            RuntimeError: the device fails.
        """
        if any(np.array_equal(sequence, POISON) for sequence in batch.split(batch.rows)):
            self.counts["poison"] += 1
            raise RuntimeError("the batch has a poisoned sequence")
        now_s = time.monotonic()
        for fault, due_s in tuple(self._due_s.items()):
            if now_s >= due_s and (fault != "out of memory" or batch.sequences > 1):
                self._due_s[fault] = now_s + FAULT_INTERVALS_S[fault]
                self.counts[fault] += 1
                if fault == "slow":
                    time.sleep(SLOW_S)
                else:
                    raise RuntimeError("Failed to allocate memory for requested buffer of size 1073741824")


def main() -> int:
    """Serve as the command line says."""
    device = FaultyDevice()
    run = EncoderGraph.run

    def run_or_fail(graph: EncoderGraph, batch: PackedBatch, **wanted: Any) -> GraphOutputs:
        device.before_run(batch)
        return run(graph, batch, **wanted)

    class FaultRecorder(SoakRecorder):
        """Also counts faults."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            faults = Gauge("soak_faults", "Faults so far.", ["fault"], registry=self.registry)
            for fault in device.counts:
                faults.labels(fault).set_function(partial(device.counts.__getitem__, fault))

    signal.signal(START_FAULTS, lambda *_: device.start())
    signal.signal(STOP_FAULTS, lambda *_: device.stop())
    with (
        patch.object(EncoderGraph, "run", run_or_fail),
        patch.object(app, "Recorder", FaultRecorder),
        patch.object(front_end_supervisor, "COMMAND", (sys.executable, "-m", "tests.support.soak.counted_front_end")),
    ):
        return cli.main()


if __name__ == "__main__":
    sys.exit(main())
