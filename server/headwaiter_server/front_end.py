"""The front end: listen for gRPC and HTTP, answer calls with an engine, and stop."""

import asyncio
import socket
import time
from collections.abc import Sequence
from typing import Any

import grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

from headwaiter_proto import encoder_pb2
from headwaiter_server.engine.interface import Engine
from headwaiter_server.http.application import http_application, metrics_application
from headwaiter_server.http.server import HttpServer, listen
from headwaiter_server.metrics.recorder import Recorder
from headwaiter_server.requests.request_path import RequestPath
from headwaiter_server.rpc import health
from headwaiter_server.rpc.auth import BearerToken
from headwaiter_server.rpc.endpoint import UnaryCalls
from headwaiter_server.rpc.incoming import IncomingMessages
from headwaiter_server.rpc.open_inference import service as open_inference
from headwaiter_server.rpc.open_inference.reflection import reflection_pool
from headwaiter_server.rpc.open_streams import OpenStreams
from headwaiter_server.rpc.reflection import GenericHandlers
from headwaiter_server.rpc.service import SERVICE, EncoderService
from headwaiter_server.rpc.tls import certificate_expiry_unix_s, grpc_credentials
from headwaiter_server.settings.credentials import Credentials
from headwaiter_server.settings.file_descriptors import max_grpc_connections, max_http_connections
from headwaiter_server.settings.flags import Settings

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
# Streams of a connection for health checks and refused calls.
_SPARE_STREAMS = 128


class CannotListen(Exception):
    """The server cannot listen on one of its ports; the message is one sentence for the operator."""


class FrontEnd:
    """Answers the calls of gRPC and of HTTP with an engine. Create a front end in a running event loop.

    Args:
        settings: the settings of the server.
        recorder: counts and times the calls.
        engine: runs the models.
        credentials: the tokens, and the files of TLS.
        http_sockets: listen for HTTP in several front ends, which share the port for gRPC too; None for the only front
            end.

    Attributes:
        port: the port for gRPC; 0 until the front end listens.
        http_port: the port of `Settings.http_host_and_port`; 0 until the front end listens.
        metrics_port: the port for metrics and health without TLS, `http_port` if requests have no port of their own; 0
            until the front end listens.
    """

    def __init__(
        self,
        settings: Settings,
        recorder: Recorder,
        engine: Engine,
        credentials: Credentials,
        http_sockets: Sequence[socket.socket] | None = None,
    ) -> None:
        self._http_sockets = http_sockets
        self._settings, self._recorder, self._engine = settings, recorder, engine
        self._path = RequestPath(settings, recorder, engine)
        incoming = IncomingMessages(settings.max_request_bytes)
        self._calls = UnaryCalls(recorder, self._path.call_limit, incoming)
        self._streams = OpenStreams(self._path)
        self._health = health.HealthService(incoming, 1 if http_sockets is None else int(settings.front_ends))
        self._reported_names: set[str] = set()
        self._http: list[HttpServer] = []
        self.port = self.http_port = self.metrics_port = 0
        self.use(credentials)
        self._grpc = self._grpc_server()
        engine.directory.subscribe(self._report_health)
        self._report_health()

    @property
    def unanswered_count(self) -> int:
        """Number of admitted requests without a reply, plus number of open streams."""
        return self._path.unanswered_count

    async def listen(self) -> None:
        """Listen on the ports, and answer calls.

        Raises:
            CannotListen: a port cannot be used.
        """
        settings, tls = self._settings, self._credentials.tls
        try:
            if tls is None:
                self.port = self._grpc.add_insecure_port(settings.address)
            else:
                # gRPC does not keep the object, but calls its function for each new connection.
                self._grpc_tls = grpc_credentials(tls, lambda: self._credentials.tls)
                self.port = self._grpc.add_secure_port(settings.address, self._grpc_tls)
        except RuntimeError:
            raise cannot_listen(settings.address) from None
        request_socket, *metrics_sockets = self._http_sockets or listen_for_http(settings)
        loop = asyncio.get_running_loop()
        application = http_application(settings, self._path, lambda: self._credentials, loop)
        bounds = max_http_connections() // (1 + len(metrics_sockets)), settings.http_timeout_s
        self._http = [
            HttpServer(request_socket, application, self._http_tls, *bounds, settings.trusted_proxies),
            *(HttpServer(each, metrics_application(self._path), None, *bounds) for each in metrics_sockets),
        ]
        self.http_port, self.metrics_port = self._http[0].port, self._http[-1].port
        for each in self._http:
            each.start()
        await self._grpc.start()

    def use(self, credentials: Credentials) -> None:
        """Check new calls and new connections with other credentials; calls in progress and connections go on."""
        tls = credentials.tls
        # Making a context may fail; then nothing changes.
        http_tls = tls.context() if tls is not None and self._settings.answers_over_http else None
        self._credentials, self._http_tls = credentials, http_tls
        if self._http:
            self._http[0].tls = http_tls
        if tls is not None:
            self._recorder.certificate_read(certificate_expiry_unix_s(tls.cert))

    def _report_health(self) -> None:
        """Report to health checks whether the server and each of its models may get requests."""
        directory = self._engine.directory
        names = set(directory.served_names)
        self._reported_names |= names
        serving = dict.fromkeys(("", SERVICE, open_inference.SERVICE), directory.available)
        serving |= {f"{SERVICE}/{name}": directory.ready and name in names for name in sorted(self._reported_names)}
        self._health.set_serving(serving)

    def drain(self) -> None:
        """Report NOT_SERVING to health checks, and answer no new requests from now on."""
        self._health.drain()
        self._path.drain()
        self._streams.drain()

    async def wait_until_quiet(self, end_s: float) -> None:
        """Return when all replies are sent and no new call has arrived for a while, at the latest at `end_s`."""
        refuse_until_s = time.monotonic() + _LONGEST_REFUSING_S
        while (now_s := time.monotonic()) < end_s:
            quiet = now_s >= min(refuse_until_s, self._recorder.last_received_s + _QUIET_S)
            if quiet and not self._path.unanswered_count:
                return
            await asyncio.sleep(_POLL_INTERVAL_S)

    async def stop_listening(self, grace_s: float) -> None:
        """Free the ports; calls in progress have `grace_s` seconds to end."""
        await self._grpc.stop(grace_s)
        await asyncio.gather(*(each.stop(grace_s) for each in self._http))

    def _grpc_server(self) -> grpc.aio.Server:
        needs_token = self._credentials.admin_tokens is not None
        server = grpc.aio.server(
            interceptors=(BearerToken(lambda: self._credentials, self._recorder),) if needs_token else (),
            options=channel_options(self._settings, shares_port=self._http_sockets is not None),
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


def listen_for_http(settings: Settings) -> list[socket.socket]:
    """Return the sockets that listen for HTTP: one for requests, and one for metrics if they have a port of their own.

    Raises:
        CannotListen: a port cannot be used.
    """
    sockets: list[socket.socket] = []
    for flag, address in settings.http_addresses.items():
        try:
            sockets.append(listen(*address))
        except OSError as error:
            for each in sockets:
                each.close()
            raise CannotListen(f"cannot listen on {flag} ({error.strerror}): choose another port") from None
    return sockets


def cannot_listen(address: str) -> CannotListen:
    """Return the error of a port for gRPC that cannot be used."""
    return CannotListen(
        f"cannot listen on --address {address}: choose a port that no other process uses, and an address of this host"
    )


# gRPC's options are numbers of 32 bits.
_MOST_MS = 2**31 - 1


def channel_options(settings: Settings, *, shares_port: bool = False) -> list[tuple[str, int]]:
    """Return the options of the gRPC server; `shares_port` lets other front ends of the server listen too."""
    age_ms = min(max(1, round(settings.max_connection_age_s * 1000)), _MOST_MS)
    age = [("grpc.max_connection_age_ms", age_ms)]
    return [
        # gRPC varies the age by a tenth, so that callers do not come back all at once. Calls in progress go on.
        *(age if settings.max_connection_age_s else []),
        ("grpc.max_receive_message_length", settings.max_request_bytes),
        ("grpc.max_send_message_length", -1),
        # If two servers shared a port, the kernel would distribute the calls between them at random.
        ("grpc.so_reuseport", int(shares_port)),
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
        # A lower limit, such as the share of one front end, would reset calls that a client starts before it knows the
        # limit.
        ("grpc.max_concurrent_streams", settings.max_calls + _SPARE_STREAMS),
        # With these probes, gRPC would let a caller send megabytes of a message before the server asks for the message.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.max_allowed_incoming_connections", max_grpc_connections()),
        # Accept no compression: gRPC checks the size of a message only after it has decompressed the message.
        ("grpc.compression_enabled_algorithms_bitset", 1),
    ]
