"""Serves a bundle by the policy of another server, behind the same gRPC front end as Headwaiter.

Run as `python -m bench.servers.baseline BUNDLE --policy fifo:32:2 --graph portable.fp32.onnx --address ...`.
"""

import argparse
import asyncio
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import grpc
import numpy as np
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from numpy.typing import NDArray
from prometheus_client import Counter, start_http_server

from bench.servers.policies import Policy, read_policy
from headwaiter_proto.manifest_pb2 import LOWERING_PORTABLE
from headwaiter_server.app import channel_options
from headwaiter_server.config import Settings
from headwaiter_server.metrics import Recorder
from headwaiter_server.rpc.service import EncoderService, ServedModel
from headwaiter_server.runtime.graph import EncoderGraph
from headwaiter_server.runtime.model import open_model
from headwaiter_server.runtime.packing import PackedBatch, pack
from headwaiter_server.scheduling.cost import Shape
from headwaiter_server.scheduling.job import Outcome


@dataclass(frozen=True, eq=False)
class _Answer:
    pooled: NDArray[np.float32]
    started_s: float
    assembled_s: float
    computed_s: float


@dataclass(frozen=True, eq=False)
class _Waiting:
    values: NDArray[np.generic]
    arrived_s: float
    answer: "asyncio.Future[_Answer]"


class PolicyScheduler:
    """Asks a policy for batches, and runs them in one thread; sequences whose caller went away are dropped."""

    def __init__(self, graph: EncoderGraph, policy: Policy, recorder: Recorder, *, padded: bool) -> None:
        self._graph = graph
        self._padded = padded
        self._policy = policy
        self._recorder = recorder
        # Rows that went through the linear layers: a padded graph computes B·N of them.
        self._rows = Counter("headwaiter_batch_rows", "Rows computed, padding included.", registry=recorder.registry)
        self._waiting: list[_Waiting] = []
        self._work = asyncio.Event()
        self._thread = ThreadPoolExecutor(1)
        self.task = asyncio.create_task(self._serve())

    async def submit(self, values: list[NDArray[np.generic]], **_: object) -> Outcome:
        """Queue the sequences of a request, and return when the last has its answer; pooled vectors only."""
        now_s, loop = time.monotonic(), asyncio.get_running_loop()
        waiting = [_Waiting(sequence, now_s, loop.create_future()) for sequence in values]
        self._waiting += waiting
        self._work.set()
        answers = await asyncio.gather(*(each.answer for each in waiting))
        last = max(answers, key=lambda answer: answer.computed_s)
        return Outcome(
            pooled=[answer.pooled for answer in answers],
            hidden=None,
            assemble_s=last.assembled_s - last.started_s,
            compute_s=last.computed_s - last.assembled_s,
            computed_s=last.computed_s,
            batches=len({answer.computed_s for answer in answers}),
        )

    async def _serve(self) -> None:
        while True:
            self._waiting = [each for each in self._waiting if not each.answer.done()]
            if not self._waiting:
                await self._more(None)
                continue
            oldest_s = self._waiting[0].arrived_s
            batches = self._policy.choose([len(each.values) for each in self._waiting], time.monotonic() - oldest_s)
            if not batches:
                await self._more(oldest_s + self._policy.delay_ms / 1e3 - time.monotonic())
            for batch in self._take(batches):
                await self._run(batch)

    async def _more(self, timeout_s: float | None) -> None:
        """Return when another sequence comes, or in time."""
        self._work.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._work.wait(), timeout_s)

    def _take(self, batches: list[list[int]]) -> list[list[_Waiting]]:
        chosen = [[self._waiting[place] for place in batch] for batch in batches]
        taken = {place for batch in batches for place in batch}
        self._waiting = [each for place, each in enumerate(self._waiting) if place not in taken]
        return chosen

    async def _run(self, batch: Sequence[_Waiting]) -> None:
        packed, answers = await asyncio.get_running_loop().run_in_executor(
            self._thread, self._compute, [each.values for each in batch]
        )
        taken_s = answers[0].computed_s - answers[0].started_s
        self._recorder.batch_ran(Shape.of(packed.lengths.tolist()), taken_s, taken_s)
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
        return packed, [_Answer(row, started_s, assembled_s, computed_s) for row in pooled]


async def serve(settings: Settings, policy: Policy, file: str) -> None:
    """Serve until SIGTERM, with the channel options, the service and the metrics of Headwaiter's own server."""
    recorder = Recorder()
    encoder = EncoderService(settings, recorder)
    model = open_model(settings.bundle, "cpu", "fp32", settings.threads)
    graph = EncoderGraph.open(settings.bundle / file, "cpu", settings.threads)
    (about,) = (each for each in model.bundle.manifest.graphs if each.file == file)
    scheduler = PolicyScheduler(graph, policy, recorder, padded=about.lowering == LOWERING_PORTABLE)
    model = replace(model, graph=graph, file=file)
    # What GetModel says of a scheduler's cost, nobody asks of a baseline.
    encoder.serve(ServedModel(model, None, cast("Any", scheduler), cast("Any", None), cast("Any", None)))
    server = grpc.aio.server(options=channel_options(settings))
    server.add_generic_rpc_handlers((encoder.handler(),))
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    await servicer.set("", health_pb2.HealthCheckResponse.SERVING)
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
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--policy", type=read_policy, required=True)
    parser.add_argument("--graph", required=True, help="the graph's file name in the bundle")
    parser.add_argument("--address", required=True)
    parser.add_argument("--metrics-port", type=int, required=True)
    arguments = parser.parse_args()
    settings = Settings(
        arguments.bundle, "cpu", address=arguments.address, metrics_port=arguments.metrics_port, threads=1
    )
    asyncio.run(serve(settings, arguments.policy, arguments.graph))


if __name__ == "__main__":
    main()
