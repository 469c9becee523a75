"""Puts the server together: settings in, a serving process out."""

import asyncio
import gc
import logging
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc
from prometheus_client import start_http_server

from headwaiter_server.config import Settings
from headwaiter_server.metrics import Recorder
from headwaiter_server.models.loading import load
from headwaiter_server.rpc.auth import BearerToken
from headwaiter_server.rpc.handlers import GenericHandlers
from headwaiter_server.rpc.service import SERVICE, EncoderService, ServedModel
from headwaiter_server.rpc.tls import credentials
from headwaiter_server.runtime.attention_weights import AttentionGraph
from headwaiter_server.scheduling.admission import QueueLimits
from headwaiter_server.scheduling.attention_weights import Attender
from headwaiter_server.scheduling.scheduler import Scheduler

log = logging.getLogger(__name__)

# A reply that is ready when the server stops still has to reach its caller.
_LAST_REPLIES_S = 1.0
# Once gRPC stops, it calls what is on its way cancelled. So a drained server stops after so long without a request, or
# after so long in all: until then, who comes is told that it is unavailable.
_QUIET_S = 0.3
_LATECOMERS_S = 2.0
_LOOK_EVERY_S = 0.02
# More than the requests in flight leave; Python's own 700 are soon there.
_OBJECTS_A_COLLECTION = 10_000


class AddressInUse(Exception):
    """A port cannot be served; the message is one sentence."""


class Server:
    """One gRPC server with one model.

    Attributes:
        port: where it serves gRPC.
        metrics_port: where it serves Prometheus metrics.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._recorder = Recorder()
        self._encoder = EncoderService(settings, self._recorder)
        self._health = health.aio.HealthServicer()
        self._scheduler: Scheduler | None = None
        self._attender: Attender | None = None
        self.port = 0
        self.metrics_port = 0

    async def start(self) -> None:
        """Take the ports, then load, check and warm up the model, then say SERVING.

        Raises:
            ModelRefused: the model must not be served.
            AddressInUse: a port is taken.
            SettingsError: a file that a setting names cannot be used.
        """
        await self._listen()
        try:
            loaded = await asyncio.get_running_loop().run_in_executor(
                ThreadPoolExecutor(1, thread_name_prefix="loader"), load, self._settings
            )
        except BaseException:
            await self._stop_listening(0)
            raise
        self._scheduler = Scheduler(
            loaded.workers,
            loaded.calibration.cost,
            loaded.calibration.limits,
            QueueLimits(self._settings.max_queue_tokens, self._settings.max_queue_s),
            self._recorder,
            self._tell_available,
        )
        bundle = loaded.model.bundle
        # Opened by the first Attend, which a bundle without the graph refuses before that.
        attention = partial(AttentionGraph.open, bundle.folder / bundle.manifest.attend.file)
        self._attender = Attender(attention, self._recorder)
        self._recorder.serving(loaded.model, loaded.calibration, self._scheduler)
        self._encoder.serve(ServedModel(loaded.model, loaded.text, self._scheduler, self._attender, loaded.calibration))
        await self._set_health(serving=True)
        log.info("serving %s on port %d, metrics on port %d", loaded.describe(), self.port, self.metrics_port)

    async def failed(self) -> None:
        """Return only by raising what stopped the scheduler."""
        assert self._scheduler is not None
        await self._scheduler.failed()

    async def drain(self) -> bool:
        """Say NOT_SERVING, answer what was admitted, and stop.

        Returns:
            Whether everything admitted had its answer within the drain time; if not, the device may still be busy.
        """
        await self._health.enter_graceful_shutdown()
        end_s = time.monotonic() + self._settings.drain_s
        reserve_s = min(_LAST_REPLIES_S, self._settings.drain_s / 4)
        given_up = 0
        self._encoder.drain()
        if self._attender is not None:
            self._attender.drain()
        if self._scheduler is not None:
            given_up = await self._scheduler.drain(self._settings.drain_s - reserve_s)
        await self._until_quiet(end_s - reserve_s)
        given_up = max(given_up, self._encoder.answering)
        if given_up:
            log.warning("gave up on %d requests after %g s", given_up, self._settings.drain_s)
        await self._stop_listening(reserve_s)
        return not given_up

    async def _until_quiet(self, end_s: float) -> None:
        """Return when every answer is on its way and no request has come for a while."""
        latest_s = time.monotonic() + _LATECOMERS_S
        while (now_s := time.monotonic()) < end_s:
            waited_long_enough = now_s >= min(latest_s, self._recorder.last_received_s + _QUIET_S)
            if waited_long_enough and not self._encoder.answering:
                return
            await asyncio.sleep(_LOOK_EVERY_S)

    def _tell_available(self, available: bool) -> None:
        """Tell the health service and the metrics that the last device died, or that one is back."""
        self._recorder.available(available)
        self._telling = asyncio.create_task(self._set_health(serving=available))

    async def _set_health(self, *, serving: bool) -> None:
        states = health_pb2.HealthCheckResponse
        state = states.SERVING if serving else states.NOT_SERVING
        for service in ("", SERVICE):
            await self._health.set(service, state)

    async def _listen(self) -> None:
        settings = self._settings
        token, tls = settings.token(), credentials(settings)
        self._grpc = grpc.aio.server(
            interceptors=() if token is None else (BearerToken(token, self._recorder),),
            options=channel_options(settings),
        )
        self._grpc.add_generic_rpc_handlers((self._encoder.handler(),))
        # Generated functions are typed for another server.
        adder: Any = GenericHandlers(self._grpc)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, adder)
        names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        servicer = reflection.aio.ReflectionServicer(names)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, adder)  # type: ignore[no-untyped-call]
        await self._set_health(serving=False)
        try:
            if tls is None:
                self.port = self._grpc.add_insecure_port(settings.address)
            else:
                self.port = self._grpc.add_secure_port(settings.address, tls)
        except RuntimeError:
            raise AddressInUse(
                f"--address {settings.address} cannot be served: another server has it, or the host is not this one"
            ) from None
        host = settings.address.rpartition(":")[0].strip("[]")
        try:
            self._metrics, _ = start_http_server(settings.metrics_port, host, self._recorder.registry)
        except OSError as error:
            raise AddressInUse(f"--metrics-port {settings.metrics_port} cannot be served: {error.strerror}") from None
        self.metrics_port = self._metrics.server_port
        await self._grpc.start()

    async def _stop_listening(self, grace_s: float) -> None:
        await self._grpc.stop(grace_s)
        await asyncio.to_thread(self._metrics.shutdown)
        self._metrics.server_close()


async def serve(settings: Settings) -> bool:
    """Serve until SIGTERM or SIGINT, then drain.

    Returns:
        Whether nothing was left undone; if not, threads may still be busy with it.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server = Server(settings)
    stopped = asyncio.create_task(stop.wait())
    if not await _first(asyncio.create_task(server.start()), stopped):
        log.info("stopped while it was starting")
        return False
    _spare_collections()
    await _first(asyncio.create_task(server.failed()), stopped)
    log.info("draining")
    done = await server.drain()
    log.info("stopped")
    return done


def _spare_collections() -> None:
    """Let the garbage collector look at what requests leave, seldom, and not at all that was there before them.

    A full collection of what a start leaves takes some 20 ms, in which nobody is answered.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_OBJECTS_A_COLLECTION)


async def _first(work: "asyncio.Task[None]", stopped: "asyncio.Task[bool]") -> bool:
    """Wait for work or for the signal to stop, which cancels the work; tell whether the work was done."""
    await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if work.done():
        work.result()
        return True
    work.cancel()
    await asyncio.wait({work})
    return False


def channel_options(settings: Settings) -> list[tuple[str, int]]:
    """Return the options of the gRPC server."""
    return [
        ("grpc.max_receive_message_length", settings.max_request_bytes),
        ("grpc.max_send_message_length", -1),
        # Two servers on one port would share its callers by chance.
        ("grpc.so_reuseport", 0),
        # A client may ping every 10 s, also between calls; a margin, since its timer and ours differ.
        ("grpc.http2.min_ping_interval_without_data_ms", 8_000),
        ("grpc.keepalive_permit_without_calls", 1),
        # No algorithm but identity: gRPC checks a message's size only after it is inflated.
        ("grpc.compression_enabled_algorithms_bitset", 1),
    ]
