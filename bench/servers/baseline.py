"""Serves a bundle with the batching policy of another server, behind Headwaiter's gRPC front end.

Run it with `python -m bench.servers.baseline BUNDLE --policy fifo:32:2 --graph portable.fp32.onnx --address ...`.
"""

import argparse
import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import grpc
import numpy as np
from numpy.typing import NDArray
from prometheus_client import Counter, start_http_server

from bench.servers.policies import Policy, read_policy
from headwaiter_server.front_end import channel_options
from headwaiter_server.metrics.recorder import Recorder
from headwaiter_server.models.directory import ModelDirectory
from headwaiter_server.models.served_model import ModelFacts, ServedModel
from headwaiter_server.requests.request_path import RequestPath
from headwaiter_server.rpc.endpoint import UnaryCalls
from headwaiter_server.rpc.health import HealthService
from headwaiter_server.rpc.incoming import IncomingMessages
from headwaiter_server.rpc.open_streams import OpenStreams
from headwaiter_server.rpc.service import EncoderService
from headwaiter_server.runtime.graph import EncoderGraph
from headwaiter_server.runtime.model import open_model
from headwaiter_server.runtime.packing import PackedBatch, pack
from headwaiter_server.scheduling.cost import Shape
from headwaiter_server.scheduling.job import BatchTimes, Interval, Job, Outcome
from headwaiter_server.settings.flags import Settings

# The name and the version of the only model, for metrics.
_MODEL = ("baseline", "1")


@dataclass(frozen=True, eq=False)
class _Answer:
    pooled: NDArray[np.float32]
    times: BatchTimes


@dataclass(frozen=True, eq=False)
class _Waiting:
    values: NDArray[np.generic]
    arrived_s: float
    answer: "asyncio.Future[_Answer]"


class PolicyScheduler:
    """Runs the batches that a policy chooses, in one thread; drops the sequences of cancelled requests.

    Attributes:
        directory: the models.
    """

    def __init__(self, graph: EncoderGraph, policy: Policy, recorder: Recorder, *, padded: bool) -> None:
        self.directory = ModelDirectory("")
        self._graph, self._padded = graph, padded
        self._policy, self._recorder = policy, recorder.model(*_MODEL)
        # Rows of the linear layers: T in a packed graph, B·N in a padded one.
        self._rows = Counter("headwaiter_batch_rows", "Rows computed, padding included.", registry=recorder.registry)
        self._waiting: list[_Waiting] = []
        self._arrival = asyncio.Event()
        self._thread = ThreadPoolExecutor(1)
        self.task = asyncio.create_task(self._serve())

    async def submit(self, _served: object, job: Job, _on_queued: Callable[[], None] = lambda: None) -> Outcome:
        """Queue the sequences of a request, and return their pooled vectors once all have run."""
        now_s, loop = time.monotonic(), asyncio.get_running_loop()
        waiting = [_Waiting(sequence, now_s, loop.create_future()) for sequence in job.values]
        self._waiting += waiting
        self._arrival.set()
        answers = await asyncio.gather(*(each.answer for each in waiting))
        return Outcome(
            pooled=[answer.pooled for answer in answers],
            hidden=None,
            batches={answer.times for answer in answers},
        )

    async def _serve(self) -> None:
        while True:
            self._waiting = [each for each in self._waiting if not each.answer.done()]
            if not self._waiting:
                await self._wait_for_arrival(None)
                continue
            oldest_s = self._waiting[0].arrived_s
            batches = self._policy.choose([len(each.values) for each in self._waiting], time.monotonic() - oldest_s)
            if not batches:
                await self._wait_for_arrival(oldest_s + self._policy.delay_ms / 1e3 - time.monotonic())
            for batch in self._take_out(batches):
                await self._run(batch)

    async def _wait_for_arrival(self, timeout_s: float | None) -> None:
        self._arrival.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._arrival.wait()

    def _take_out(self, batches: list[list[int]]) -> list[list[_Waiting]]:
        chosen = [[self._waiting[place] for place in batch] for batch in batches]
        taken = {place for batch in batches for place in batch}
        self._waiting = [each for place, each in enumerate(self._waiting) if place not in taken]
        return chosen

    async def _run(self, batch: Sequence[_Waiting]) -> None:
        packed, answers = await asyncio.get_running_loop().run_in_executor(
            self._thread, self._compute, [each.values for each in batch]
        )
        seconds = answers[0].times.run.seconds
        self._recorder.batch_ran(Shape.of(packed.lengths.tolist()), seconds, seconds)
        self._rows.inc(packed.sequences * packed.longest_tokens if self._padded else packed.tokens)
        for each, answer in zip(batch, answers, strict=True):
            if not each.answer.done():
                each.answer.set_result(answer)

    def _compute(self, sequences: list[NDArray[np.generic]]) -> tuple[PackedBatch, list[_Answer]]:
        started_s = time.monotonic()
        packed = pack(sequences)
        assembled_s = time.monotonic()
        pooled = self._graph.run(packed, hidden=False).pooled
        assert pooled is not None
        computed_s = time.monotonic()
        packing, run = Interval(started_s, assembled_s), Interval(assembled_s, computed_s)
        times = BatchTimes(packing, run)
        return packed, [_Answer(row, times) for row in pooled]


async def serve(bundle: Path, settings: Settings, policy: Policy, graph_file: str) -> None:
    """Serve until SIGTERM with the channel options, the gRPC service and the metrics of Headwaiter's server."""
    recorder = Recorder()
    model = open_model(bundle, "cpu", "fp32", settings.threads)
    graph = EncoderGraph.open(bundle / graph_file, "cpu", settings.threads)
    scheduler = PolicyScheduler(graph, policy, recorder, padded=graph_file.startswith("portable"))
    model = replace(model, graph=graph, graph_file=graph_file)
    served = ServedModel(ModelFacts.of(model, *_MODEL, (0,)), None, recorder.model(*_MODEL))
    scheduler.directory.started = True
    scheduler.directory.update([], {served.name: served})
    # The benchmarks call neither GetModel nor Attend, which need the other methods of an engine.
    path = RequestPath(settings, recorder, cast("Any", scheduler))
    server = grpc.aio.server(options=channel_options(settings))
    incoming = IncomingMessages(settings.max_request_bytes)
    calls, health = UnaryCalls(recorder, path.call_limit, incoming), HealthService(incoming)
    server.add_generic_rpc_handlers((EncoderService(path, calls, OpenStreams(path)).handler(), health.handler()))
    health.set_serving({"": True})
    server.add_insecure_port(settings.address)
    start_http_server(settings.metrics_port, settings.address.rpartition(":")[0], recorder.registry)
    await server.start()
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await asyncio.wait({asyncio.create_task(stopped.wait()), scheduler.task}, return_when=asyncio.FIRST_COMPLETED)
    await server.stop(0)
    if scheduler.task.done():
        scheduler.task.result()
    scheduler.task.cancel()


def main() -> None:
    """Serve as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--policy", type=read_policy, required=True)
    parser.add_argument("--graph", required=True, help="file name of the graph in the bundle")
    parser.add_argument("--address", required=True)
    parser.add_argument("--metrics-port", type=int, required=True)
    arguments = parser.parse_args()
    settings = Settings(
        bundle=arguments.bundle, address=arguments.address, metrics_port=arguments.metrics_port, threads=1
    )
    asyncio.run(serve(arguments.bundle, settings, arguments.policy, arguments.graph))


if __name__ == "__main__":
    main()
