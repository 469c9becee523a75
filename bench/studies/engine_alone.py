"""The engine alone: its CPU time for each sequence that front ends send, on a device that computes nothing.

Run it with `python -m bench.studies.engine_alone`.
"""

import asyncio
import gc
import socket
import sys
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.processes import LOAD_CORE, SERVER_CORE, in_new_process, pin
from bench.studies.scheduler_alone import (
    CALLERS,
    COST,
    GC_THRESHOLD_OBJECTS,
    LENGTH_TOKENS,
    LIMITS,
    QUEUE_LIMITS,
    BatchCounter,
    SleepingDevice,
)
from headwaiter_server.metrics.recorder import Recorder
from headwaiter_server.models.directory import ModelDirectory
from headwaiter_server.processes.front_end_links import FrontEndLinks
from headwaiter_server.processes.messages import HEADER, Kind, split_messages, write_request
from headwaiter_server.runtime.packing import pack
from headwaiter_server.scheduling.job import Job
from headwaiter_server.scheduling.scheduler import Scheduler
from headwaiter_server.scheduling.worker import Session, Worker

_RUN_S = 2.0
_RECEIVED_BYTES = 1 << 20


def measure(callers: int) -> tuple[float, float, float]:
    """Return CPU microseconds per sequence, sequences/s and sequences per batch, on one core of this process."""
    pin(SERVER_CORE)
    gc.set_threshold(GC_THRESHOLD_OBJECTS)
    return asyncio.run(_measure(callers))


async def _measure(callers: int) -> tuple[float, float, float]:
    worker = Worker()
    scheduler = Scheduler([worker], QUEUE_LIMITS)
    observer = BatchCounter()
    session = Session(SleepingDevice(), pack([np.zeros(1, np.int64)]))
    running = SimpleNamespace(queue=scheduler.add_model({worker: session}, COST, LIMITS, observer))
    engine: Any = SimpleNamespace(
        scheduler=scheduler,
        running_model=lambda _: running,
        max_unread_bytes=1 << 30,
        directory=ModelDirectory(""),
        versions=SimpleNamespace(followers=[]),
        load=None,
        unload=None,
    )
    links = FrontEndLinks(engine, Recorder())
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "bench.studies.engine_alone", str(theirs.fileno()), str(callers)]
    load = await asyncio.create_subprocess_exec(*command, pass_fds=[theirs.fileno()])
    theirs.close()
    await links.add(ours, 1)
    while not observer.sequences:  # noqa: ASYNC110 - an event costs each batch time
        await asyncio.sleep(0.1)
    await asyncio.sleep(_RUN_S)
    gc.collect()
    gc.freeze()
    cpu_s, started_s = time.process_time(), time.perf_counter()
    batches, sequences = observer.batches, observer.sequences
    await asyncio.sleep(_RUN_S)
    cpu_s, run_s = time.process_time() - cpu_s, time.perf_counter() - started_s
    batches, sequences = observer.batches - batches, observer.sequences - sequences
    load.kill()
    await load.wait()
    return cpu_s / sequences * 1e6, sequences / run_s, sequences / batches


def send(end: socket.socket, callers: int) -> None:
    """Keep a number of requests of one sequence in flight, as a front end does, until the engine ends."""
    pin(LOAD_CORE)
    values: list[NDArray[np.generic]] = [np.zeros(LENGTH_TOKENS, np.int64)]
    payload = b"".join(write_request(0, Job(values)))
    end.sendall(b"".join(HEADER.pack(len(payload), Kind.REQUEST, number) + payload for number in range(callers)))
    received = b""
    while data := end.recv(_RECEIVED_BYTES):
        answers, received = split_messages(received + data)
        assert not any(kind in (Kind.RAISED, Kind.REFUSED) for kind, _, _ in answers)
        end.sendall(
            b"".join(
                HEADER.pack(len(payload), Kind.REQUEST, number) + payload
                for kind, number, _ in answers
                if kind is Kind.VECTORS
            )
        )


def main() -> None:
    """Measure, and print the figures; with arguments, send requests instead."""
    if sys.argv[1:]:
        send(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
        return
    for callers in CALLERS:
        cpu_us, per_s, per_batch = in_new_process("bench.studies.engine_alone", "measure", callers)
        print(
            f"{callers:,} in flight: {cpu_us:.0f} µs, {per_s:,.0f} sequences/s, {per_batch:.0f} per batch", flush=True
        )


if __name__ == "__main__":
    main()
