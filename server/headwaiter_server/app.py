"""Build the server from its settings: listen, load the model, serve, drain."""

import asyncio
import logging
import time
from typing import Any

import grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

from headwaiter_proto import encoder_pb2
from headwaiter_server.config import Settings
from headwaiter_server.descriptors import max_grpc_connections
from headwaiter_server.http import announcements
from headwaiter_server.http.application import http_application
from headwaiter_server.http.server import HttpServer
from headwaiter_server.metrics import Recorder
from headwaiter_server.models.repository import ModelRepository
from headwaiter_server.requests.request_path import RequestPath
from headwaiter_server.rpc import health
from headwaiter_server.rpc.auth import BearerToken
from headwaiter_server.rpc.endpoint import UnaryCalls
from headwaiter_server.rpc.handlers import GenericHandlers
from headwaiter_server.rpc.incoming import IncomingMessages
from headwaiter_server.rpc.open_inference import service as open_inference
from headwaiter_server.rpc.open_inference.descriptors import reflection_pool
from headwaiter_server.rpc.open_streams import OpenStreams
from headwaiter_server.rpc.service import SERVICE, EncoderService
from headwaiter_server.rpc.tls import credentials
from headwaiter_server.scheduling.admission import QueueLimits
from headwaiter_server.scheduling.scheduler import Scheduler
from headwaiter_server.scheduling.worker import Worker

log = logging.getLogger(__name__)

# The part of a drain that is reserved for sending replies.
_SEND_REPLIES_S = 1.0
# When a gRPC server stops, it cancels the calls that it has just received. A drained server therefore answers new calls
# with UNAVAILABLE until no call has arrived for _QUIET_S, but for at most _LONGEST_REFUSING_S.
_QUIET_S = 0.3
_LONGEST_REFUSING_S = 5.0
_POLL_INTERVAL_S = 0.02
# The server pings a connection after an interval without messages, and closes the connection if no answer comes within
# the timeout.
_PING_INTERVAL_S, _PING_TIMEOUT_S = 60.0, 20.0
# The longest time to establish a connection, TLS included.
_HANDSHAKE_TIMEOUT_S = 20.0
# Connections without calls for this long are closed; clients open new ones without an error.
_MAX_CONNECTION_IDLE_S = 600.0
_MORE_STREAMS = 128


class CannotListen(Exception):
    """The server cannot listen on one of its ports; the message is one sentence for the operator."""


class Server:
    """One gRPC server with one model or several.

    Attributes:
        port: the port for gRPC; 0 until the server listens.
        metrics_port: the port for HTTP: metrics, health, and requests if `http_api` is on; 0 until the server listens.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._recorder = Recorder(settings.devices)
        self._path = RequestPath(settings, self._recorder)
        incoming = IncomingMessages(settings.max_request_bytes)
        self._calls = UnaryCalls(self._recorder, self._path.call_limit, incoming)
        self._streams = OpenStreams(self._path)
        self._health = health.HealthService(incoming)
        self._scheduler: Scheduler | None = None
        self._repository: ModelRepository | None = None
        self._reported_names: set[str] = set()
        self._started = False
        self.port = 0
        self.metrics_port = 0

    async def start(self) -> None:
        """Listen on the ports; load, check and warm up the models; then report SERVING to health checks.

        Raises:
            ModelRefused: no model can be served.
            CannotListen: the server cannot listen on one of its ports.
            SettingsError: a file cannot be used.
        """
        await self._listen()
        settings = self._settings
        workers = [
            Worker(device=device, instance=instance)
            for device in settings.devices
            for instance in range(settings.instances)
        ]
        queue_limits = QueueLimits(settings.max_queue_tokens, settings.max_queue_s)
        self._scheduler = Scheduler(workers, queue_limits)
        self._repository = ModelRepository(settings, self._scheduler, self._recorder, self._update_health)
        self._path.serve(self._repository, self._scheduler)
        try:
            await self._repository.start()
        except BaseException:
            await self._stop_listening(0)
            raise
        self._started = True
        self._update_health()
        log.info("serving on port %d, metrics on port %d", self.port, self.metrics_port)
        for line in announcements.addresses(settings, self.metrics_port):
            log.info(line)
        for line in announcements.warnings(settings):
            log.warning(line)

    async def failed(self) -> None:
        """Wait until the scheduler ends, and raise its error if it has failed: `DeviceLost` if a device is dead."""
        assert self._scheduler is not None
        await self._scheduler.failed()

    async def drain(self) -> bool:
        """Report NOT_SERVING to health checks, answer the admitted requests, and stop listening.

        Returns:
            Whether all admitted requests were answered in time.
        """
        self._health.drain()
        end_s = time.monotonic() + self._settings.drain_s
        reserve_s = min(_SEND_REPLIES_S, self._settings.drain_s / 4)
        unanswered = 0
        self._path.drain()
        self._streams.drain()
        if self._repository is not None:
            self._repository.drain()
        if self._scheduler is not None:
            unanswered = await self._scheduler.drain(self._settings.drain_s - reserve_s)
        if self._repository is not None:
            await self._repository.store_costs()
        await self._wait_until_quiet(end_s - reserve_s)
        unanswered = max(unanswered, self._path.unanswered_count)
        if unanswered:
            log.warning("%d requests are unanswered after a drain of %g s", unanswered, self._settings.drain_s)
        await self._stop_listening(reserve_s)
        return not unanswered

    async def stop(self) -> None:
        """Report NOT_SERVING to health checks, send the errors of the failed requests, and stop listening."""
        self._health.drain()
        self._path.drain()
        self._streams.drain()
        await self._wait_until_quiet(time.monotonic() + _SEND_REPLIES_S)
        await self._stop_listening(_SEND_REPLIES_S)

    async def _wait_until_quiet(self, end_s: float) -> None:
        """Return when all replies are sent and no new call has arrived for a while, at the latest at `end_s`."""
        refuse_until_s = time.monotonic() + _LONGEST_REFUSING_S
        while (now_s := time.monotonic()) < end_s:
            quiet = now_s >= min(refuse_until_s, self._recorder.last_received_s + _QUIET_S)
            if quiet and not self._path.unanswered_count:
                return
            await asyncio.sleep(_POLL_INTERVAL_S)

    def _update_health(self) -> None:
        """Report to health checks whether the server and each of its models answer requests."""
        names = set(self._repository.served_names) if self._repository is not None else set()
        # A server without its default model must get no calls.
        available = self._started and bool(names) and self._settings.default_model in ("", *names)
        self._reported_names |= names
        self._path.available = available
        serving = dict.fromkeys(("", SERVICE, open_inference.SERVICE), available)
        serving |= {f"{SERVICE}/{name}": self._started and name in names for name in sorted(self._reported_names)}
        self._health.set_serving(serving)

    def _grpc_server(self) -> grpc.aio.Server:
        token, admin_token = self._settings.token(), self._settings.admin_token()
        server = grpc.aio.server(
            interceptors=() if admin_token is None else (BearerToken(token, admin_token, self._recorder),),
            options=channel_options(self._settings),
        )
        services = (
            EncoderService(self._path, self._calls, self._streams),
            open_inference.OpenInferenceService(self._path, self._calls, self._streams),
            self._health,
        )
        server.add_generic_rpc_handlers(tuple(service.handler() for service in services))
        # The generated functions expect another class of server.
        adapter: Any = GenericHandlers(server, self._streams.limit)
        names = (SERVICE, open_inference.SERVICE, health.NAME, reflection.SERVICE_NAME)
        files = (encoder_pb2.DESCRIPTOR, health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR)
        servicer = reflection.aio.ReflectionServicer(names, reflection_pool(files))
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, adapter)  # type: ignore[no-untyped-call]
        return server

    async def _listen(self) -> None:
        settings = self._settings
        tls = credentials(settings)
        self._grpc = self._grpc_server()
        self._update_health()
        try:
            if tls is None:
                self.port = self._grpc.add_insecure_port(settings.address)
            else:
                self.port = self._grpc.add_secure_port(settings.address, tls)
        except RuntimeError:
            raise CannotListen(
                f"cannot listen on --address {settings.address}: choose a port that no other process uses, and an "
                "address of this host"
            ) from None
        host, port = settings.http_host_and_port
        try:
            application = http_application(settings, self._path, settings.token(), asyncio.get_running_loop())
            self._http = HttpServer(host, port, application, settings)
        except OSError as error:
            setting = f"--http-address {settings.http_address}" if settings.http_address else f"--metrics-port {port}"
            raise CannotListen(f"cannot listen on {setting} ({error.strerror}): choose another port") from None
        self.metrics_port = self._http.port
        self._http.start()
        await self._grpc.start()

    async def _stop_listening(self, grace_s: float) -> None:
        await self._grpc.stop(grace_s)
        await self._http.stop(grace_s)


def channel_options(settings: Settings) -> list[tuple[str, int]]:
    """Return the options of the gRPC server."""
    return [
        ("grpc.max_receive_message_length", settings.max_request_bytes),
        ("grpc.max_send_message_length", -1),
        # If two servers shared a port, the kernel would distribute the calls between them at random.
        ("grpc.so_reuseport", 0),
        # Clients may ping every 10 s, even between calls; a minimum of 8 s allows for differences between timers.
        ("grpc.http2.min_ping_interval_without_data_ms", 8_000),
        ("grpc.keepalive_permit_without_calls", 1),
        # Detect callers that vanished without closing the connection: their calls would stay in progress for hours.
        ("grpc.keepalive_time_ms", round(_PING_INTERVAL_S * 1000)),
        ("grpc.keepalive_timeout_ms", round(_PING_TIMEOUT_S * 1000)),
        # gRPC also pings to measure bandwidth. While such a ping is unanswered, gRPC sends no keepalive ping.
        ("grpc.http2.ping_timeout_ms", round(_PING_TIMEOUT_S * 1000)),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.server_handshake_timeout_ms", round(_HANDSHAKE_TIMEOUT_S * 1000)),
        ("grpc.max_connection_idle_ms", round(_MAX_CONNECTION_IDLE_S * 1000)),
        # Health checks and refused calls need streams beyond those of the admitted calls. A lower limit would reset
        # calls that a client starts before it knows the limit.
        ("grpc.max_concurrent_streams", settings.max_calls + _MORE_STREAMS),
        # With these probes, gRPC would let a caller send megabytes of a message before the server asks for the message.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.max_allowed_incoming_connections", max_grpc_connections()),
        # Accept no compression: gRPC checks the size of a message only after it has decompressed the message.
        ("grpc.compression_enabled_algorithms_bitset", 1),
    ]
