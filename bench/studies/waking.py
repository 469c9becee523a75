"""The CPU time of the server's own path for one call, without gRPC: at once after the call before, and after a pause.

Run it with `python -m bench.studies.waking`. It prints as JSON the microseconds of the thread's CPU time per call, from
the message to the bytes of the reply, with an engine that answers at once. Before each call, which is timed alone, the
thread does nothing, runs other Python code, reads memory, or sleeps.
"""

import ast
import asyncio
import inspect
import json
import textwrap
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import numpy as np

from bench.loads.raw_calls import request
from bench.processes import SERVER_CORE, pin
from bench.rounds import Rounds
from headwaiter_proto.encoder_pb2 import PRECISION_FP32
from headwaiter_server.metrics.recorder import Recorder
from headwaiter_server.models.directory import ModelDirectory
from headwaiter_server.models.served_model import ModelFacts, ServedModel
from headwaiter_server.requests.request_path import RequestPath
from headwaiter_server.rpc.endpoint import UnaryCalls
from headwaiter_server.rpc.incoming import IncomingMessages
from headwaiter_server.rpc.open_streams import OpenStreams
from headwaiter_server.rpc.service import EncoderService
from headwaiter_server.runtime.bundle import Bundle
from headwaiter_server.scheduling.job import BatchTimes, Interval, Job, Outcome
from headwaiter_server.settings.flags import Settings
from testbed.minilm import bundle

_LENGTH_TOKENS, _WIDTH = 20, 384
_CALLS, _ROUNDS = 300, 9
_SLEEP_S = 0.002
# More than the second-level cache of a core holds.
_READ_BYTES = 8 << 20
_SOURCE = textwrap.dedent(inspect.getsource(json.JSONEncoder.default))


class _Engine:
    """Answers each request at once with the same vector; see `Engine`."""

    def __init__(self, recorder: Recorder) -> None:
        opened = Bundle.open(bundle())
        manifest = opened.manifest
        facts = ModelFacts(manifest.name, "1", manifest, opened.digest, "", PRECISION_FP32, "cpu", "", (0,), 0)
        self.directory = ModelDirectory("")
        served = ServedModel(facts, None, recorder.model(manifest.name, "1"))
        self.directory.started = True
        self.directory.update([], {manifest.name: served})
        self._vector = np.random.default_rng(0).standard_normal(_WIDTH, np.float32)

    async def submit(self, _served: object, _job: Job, on_queued: Callable[[], None]) -> Outcome:
        on_queued()
        now_s = time.monotonic()
        return Outcome([self._vector], None, (BatchTimes(Interval(now_s, now_s), Interval(now_s, now_s)),))


class _Context:
    """A call of gRPC whose message has arrived."""

    def __init__(self, message: bytes) -> None:
        self._message = message

    def time_remaining(self) -> float:
        return 30.0

    def peer(self) -> str:
        return "ipv4:127.0.0.1:5"

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def add_done_callback(self, end: Callable[[object], None]) -> None:
        self.end = end

    async def read(self) -> bytes:
        return self._message


async def _nothing() -> None:
    pass


async def _other_code() -> None:
    ast.unparse(ast.parse(_SOURCE))


async def _read_memory(numbers: Any) -> None:
    numbers.sum()


async def _measure() -> dict[str, float]:
    settings, recorder = Settings(bundle=bundle()), Recorder()
    engine: Any = _Engine(recorder)
    path = RequestPath(settings, recorder, engine)
    calls = UnaryCalls(recorder, path.call_limit, IncomingMessages(settings.max_request_bytes))
    service = EncoderService(path, calls, OpenStreams(path))
    answer: Any = calls.handler("Encode", partial(service.answer, "Encode")).stream_unary
    message = request(np.arange(1000, 1000 + _LENGTH_TOKENS)).message
    before: dict[str, Callable[[], Awaitable[None]]] = {
        "nothing": _nothing,
        "other Python code": _other_code,
        f"{_READ_BYTES >> 20} MiB read": partial(_read_memory, np.ones(_READ_BYTES // 8)),
        f"{1e3 * _SLEEP_S:g} ms of sleep": partial(asyncio.sleep, _SLEEP_S),
    }
    call_us = {name: Rounds() for name in before}
    for _ in range(_ROUNDS):
        for name, prepare in before.items():
            spent_ns = 0
            for _ in range(_CALLS):
                await prepare()
                context = _Context(message)
                started_ns = time.thread_time_ns()
                await answer(None, context)
                spent_ns += time.thread_time_ns() - started_ns
                context.end(None)
            call_us[name].append(spent_ns / _CALLS / 1e3)
    return {name: round(float(rounds), 1) for name, rounds in call_us.items()}


def main() -> None:
    """Measure, and print the figures."""
    pin(SERVER_CORE)
    print(json.dumps(asyncio.run(_measure())))


if __name__ == "__main__":
    main()
