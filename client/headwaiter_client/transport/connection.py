"""Connect a client to its servers: addresses, channel options, TLS, metadata and deadlines."""

import json
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import grpc

from headwaiter_client.calls.arguments import check_type
from headwaiter_proto.rules.errors import DeadlineExceeded

CHANNEL_OPTIONS = (
    # Replies with hidden vectors are larger than gRPC's default limit of 4 MiB. The server limits the size of requests.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Detect a dead connection within 30 s, even between calls. The server closes connections that ping more often than
    # every 10 s.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Channels to the same address must not share a connection, which only one front end of a server would serve.
    ("grpc.use_local_subchannel_pool", 1),
    # Reconnect to a restarted server within seconds; gRPC's default waits grow to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 3_000),
)

# Take turns among the IP addresses of one host name, because each address may be a replica.
_ROUND_ROBIN: dict[str, Any] = {"loadBalancingConfig": [{"round_robin": {}}]}

# The forms of an address. gRPC would accept nearly any other string, and fail to resolve it only during a call.
_HOST_PORT = r"(\[[0-9A-Fa-f:.]+(%\w+)?\]|[^\s:/,\[\]@]+):[0-9]+"
_HOSTS = re.compile(rf"(dns:(//[^/\s]*/)?)?{_HOST_PORT}|ipv[46]:{_HOST_PORT}(,{_HOST_PORT})*")
_SOCKET = re.compile(r"(unix|unix-abstract|vsock|xds):\S+")
_OPTION = '("grpc.keepalive_time_ms", 60_000)'
_ADDRESS = 'a str, such as "localhost:50051", or a list of these'
# OpenSSL's errors for a private key that does not belong to the certificate.
_KEY_MISMATCHES = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED")
_PORTS = range(1, 1 << 16)

# gRPC treats a deadline too far in the future as a deadline that has passed.
_MAX_TIMEOUT_S = 365 * 24 * 3600.0


@dataclass(frozen=True)
class TlsConfig:
    """Paths of the PEM files of a TLS connection.

    Attributes:
        ca: certificates to trust, instead of the public ones that come with grpcio.
        cert: the client's certificate chain, for a server that requires client certificates.
        key: the private key of `cert`.

    Raises:
        TypeError: an attribute is not a path but, for example, the content of a file.
        ValueError: `cert` was given without `key`, or `key` without `cert`.
    """

    ca: PathLike[str] | str | None = None
    cert: PathLike[str] | str | None = None
    key: PathLike[str] | str | None = None

    def __post_init__(self) -> None:
        for name in ("ca", "cert", "key"):
            check_type(name, getattr(self, name), PathLike | str | None, "the path of a PEM file")
        if (self.cert is None) != (self.key is None):
            given, missing = ("cert", "key") if self.key is None else ("key", "cert")
            raise ValueError(f"{given} is given without {missing}: give both cert and key, or neither")

    def credentials(self) -> grpc.ChannelCredentials:
        """Read the files.

        Raises:
            OSError: a file cannot be read.
            ValueError: a file is not a PEM file of its kind, or the key is encrypted or belongs to another certificate.
        """
        contents: dict[str, bytes | None] = {}
        for name, kind in (("ca", "CERTIFICATE"), ("cert", "CERTIFICATE"), ("key", "PRIVATE KEY")):
            file = getattr(self, name)
            content = contents[name] = None if file is None else Path(file).read_bytes()
            if content is not None and not re.search(rb"-----BEGIN [A-Z0-9 ]*%s-----" % kind.encode(), content):
                raise ValueError(f"{name}: {file} holds no {kind}: give a PEM file with a {kind}")
        ca, cert, key = contents.values()
        if key is not None and b"ENCRYPTED" in key:
            raise ValueError(f"key: {self.key} is encrypted, which gRPC does not support: decrypt the key")
        if self.cert is not None:
            # Without this check, the first call would fail with an error that does not name the key.
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(self.cert, self.key)
            except ssl.SSLError as error:
                # gRPC accepts keys that OpenSSL refuses for other reasons, such as short keys.
                if error.reason in _KEY_MISMATCHES:
                    raise ValueError(
                        f"key: {self.key} is not the key of the certificate in {self.cert}: give the key of cert"
                    ) from None
        return grpc.ssl_channel_credentials(root_certificates=ca, private_key=key, certificate_chain=cert)


@dataclass(frozen=True)
class Connection:
    """The addresses of the servers, and how to connect to them.

    Attributes:
        address: the server, or a list of replicas; see `Client`.
        token: bearer token to send with each call.
        tls: the files of a TLS connection; plain text when None.
        metadata: gRPC metadata to send with each call, besides the token.
        interceptors: gRPC's client interceptors, such as OpenTelemetry's; the first is called first.
        channel_options: options of gRPC channels, which replace the client's own.

    Raises:
        TypeError: an attribute has the wrong type.
        ValueError: an address or a channel option has the wrong form, or the token or the metadata cannot be sent in a
            header.
    """

    address: str | Sequence[str]
    token: str | None = field(default=None, repr=False)
    tls: TlsConfig | None = None
    metadata: Mapping[str, str] | None = field(default=None, repr=False)
    interceptors: Sequence[Any] = ()
    channel_options: Sequence[tuple[str, Any]] = ()

    def __post_init__(self) -> None:
        for name, accepted, description in (
            ("address", str | bytes | Sequence, _ADDRESS),
            ("token", str | None, "a str"),
            ("tls", TlsConfig | None, "a TlsConfig, such as TlsConfig() for public certificates"),
            ("metadata", Mapping | None, 'a mapping, such as {"x-team": "search"}'),
        ):
            check_type(name, getattr(self, name), accepted, description)
        if not self.address:
            raise ValueError("no address is given: pass host:port, or a list of replicas")
        for address in self.addresses:
            _check_address(address)
        check_type("interceptors", self.interceptors, Sequence, "a list of gRPC's client interceptors")
        check_type("channel_options", self.channel_options, Sequence, f"a list, such as [{_OPTION}]")
        for option in self.channel_options:
            if not isinstance(option, tuple | list) or len(option) != 2 or not isinstance(option[0], str):
                raise ValueError(
                    f"channel_options holds {option!r}: pass pairs of a name and a value, such as {_OPTION}"
                )
        for key, value in (self.metadata or {}).items():
            check_type("a key of metadata", key, str, "a str")
            check_type(f"metadata[{key!r}]", value, str, "a str")
            if not re.fullmatch("[0-9a-z_.-]+", key) or key.startswith("grpc-") or key.endswith("-bin"):
                raise ValueError(
                    f"metadata has the key {key!r}: use lower-case letters, digits and _.- in keys, not grpc- at the "
                    "start and not -bin at the end"
                )
            if not re.fullmatch("[ -~]*", value):
                raise ValueError(f"metadata[{key!r}] holds a character that headers cannot hold: use printable ASCII")
        if self.token is not None and not re.fullmatch("[!-~]+", self.token):
            raise ValueError(
                "token is empty or holds a character that is not allowed: use visible ASCII without spaces"
            )

    @property
    def balanced(self) -> bool:
        """Whether several replicas share the calls."""
        return not isinstance(self.address, str)

    def credentials(self) -> grpc.ChannelCredentials | None:
        """Read the TLS files, if there are any; see `TlsConfig.credentials` for the errors."""
        return self.tls.credentials() if self.tls else None

    def channels(self, index: int, credentials: grpc.ChannelCredentials | None, count: int = 1) -> list[grpc.Channel]:
        """Open channels to an address, over TLS if there are credentials; each one has a connection of its own."""
        address, options = self.addresses[index], self._options
        channels = [
            grpc.secure_channel(address, credentials, options)
            if credentials
            else grpc.insecure_channel(address, options)
            for _ in range(count)
        ]
        return [grpc.intercept_channel(channel, *self.interceptors) for channel in channels]

    def aio_channels(
        self, index: int, credentials: grpc.ChannelCredentials | None, count: int = 1
    ) -> list[grpc.aio.Channel]:
        """Open channels for asyncio to an address; see `channels`."""
        address, options, interceptors = self.addresses[index], self._options, list(self.interceptors)
        return [
            grpc.aio.secure_channel(address, credentials, options, interceptors=interceptors)
            if credentials
            else grpc.aio.insecure_channel(address, options, interceptors=interceptors)
            for _ in range(count)
        ]

    def call_metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the metadata of each call."""
        entries = tuple((self.metadata or {}).items())
        # The token is plain metadata because gRPC sends call credentials only with TLS.
        return entries if self.token is None else (*entries, ("authorization", f"Bearer {self.token}"))

    @property
    def addresses(self) -> Sequence[str]:
        """The addresses; one if the client is for a single server."""
        return [self.address] if isinstance(self.address, str | bytes) else self.address

    @property
    def _options(self) -> list[tuple[str, Any]]:
        options: dict[str, Any] = dict(CHANNEL_OPTIONS)
        if self.balanced:
            options["grpc.service_config"] = json.dumps(_ROUND_ROBIN)
        return list({**options, **dict(self.channel_options)}.items())


def _check_address(address: str) -> None:
    check_type("address", address, str, _ADDRESS)
    ports = re.findall(r":([0-9]+)(?=,|$)", address)
    if not (_SOCKET.fullmatch(address) or (_HOSTS.fullmatch(address) and all(int(port) in _PORTS for port in ports))):
        raise ValueError(
            f"address {address!r} is not of the form host:port: pass a server such as localhost:50051, [::1]:50051 or "
            "unix:path, or a list of replicas"
        )


NOT_PICKLED = "{name} cannot be pickled, because it holds connections: make {name}(address) in the other process"


def described(client: object, address: str | Sequence[str] | None, transport: object) -> str:
    """Return the `repr` of a client: its address, or the transport that replaces the connection."""
    arguments = f"transport={transport!r}" if address is None else repr(address)
    return f"{type(client).__name__}({arguments})"


def capped_timeout_s(timeout_s: float, request_id: str | None) -> float:
    """Return the timeout of a call in seconds, capped at the longest that gRPC can handle.

    Raises:
        DeadlineExceeded: the timeout is not above 0.
    """
    if not timeout_s > 0:
        raise DeadlineExceeded("the deadline passed before the call was sent: allow more time", request_id=request_id)
    return min(timeout_s, _MAX_TIMEOUT_S)
