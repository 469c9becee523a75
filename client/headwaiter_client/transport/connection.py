"""How a client reaches its servers: addresses, channel options, TLS, metadata and deadlines."""

import json
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

import grpc

from headwaiter_client.calls.arguments import check_type
from headwaiter_client.errors import DeadlineExceeded
from headwaiter_proto import encoder_pb2 as pb

CHANNEL_OPTIONS = (
    # Hidden states of a large request are far beyond gRPC's default of 4 MiB; what a request may hold, the server says.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # A connection that went dead in silence is found within half a minute, also between calls. The server takes a
    # ping every 10 s and hangs up on more.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # A server that restarts is found again within seconds; gRPC's own waits grow to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 3_000),
)

_BALANCED = {
    # A name may stand for several replicas: take turns among them too.
    "loadBalancingConfig": [{"round_robin": {}}],
    # Watch the standard health service of each, and send calls only where it says SERVING.
    "healthCheckConfig": {"serviceName": pb.DESCRIPTOR.services_by_name["Encoder"].full_name},
}
REPLICA_OPTIONS = (*CHANNEL_OPTIONS, ("grpc.service_config", json.dumps(_BALANCED)))

# What gRPC takes for a server. It would take nearly anything else too, for a name that it then does not find.
_PLACE = r"(\[[0-9A-Fa-f:.]+(%\w+)?\]|[^\s:/,\[\]@]+):[0-9]+"
_HOSTS = re.compile(rf"(dns:(//[^/\s]*/)?)?{_PLACE}|ipv[46]:{_PLACE}(,{_PLACE})*")
_SOCKET = re.compile(r"(unix|unix-abstract|vsock|xds):\S+")
_ADDRESS = 'a str, such as "localhost:50051", or a list of these'
# What OpenSSL says of a key that is another certificate's, of the same kind or of another.
_MISMATCHES = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED")
_PORTS = range(1, 1 << 16)

# gRPC turns a deadline too far in the future into one that has passed.
_MAX_TIMEOUT_S = 365 * 24 * 3600.0


@dataclass(frozen=True)
class TlsConfig:
    """The files of a TLS connection, in PEM.

    Attributes:
        ca: certificates to trust in place of the public ones that grpcio brings.
        cert: the client's certificate chain, for a server that asks for one.
        key: the private key of `cert`.

    Raises:
        TypeError: one of them is no path, such as what a file holds.
        ValueError: one of `cert` and `key` came without the other.
    """

    ca: PathLike[str] | str | None = None
    cert: PathLike[str] | str | None = None
    key: PathLike[str] | str | None = None

    def __post_init__(self) -> None:
        for name in ("ca", "cert", "key"):
            check_type(name, getattr(self, name), PathLike | str | None, "the path of a file in PEM")
        if (self.cert is None) != (self.key is None):
            raise ValueError("a client certificate needs its key: give both cert and key, or neither")

    def credentials(self) -> grpc.ChannelCredentials:
        """Reads the files.

        Raises:
            OSError: a file cannot be read.
            ValueError: a file holds something else, or a key that is encrypted or another certificate's.
        """
        ca, key, cert = (None if file is None else Path(file).read_bytes() for file in (self.ca, self.key, self.cert))
        for name, content, kind in (
            ("ca", ca, "CERTIFICATE"),
            ("cert", cert, "CERTIFICATE"),
            ("key", key, "PRIVATE KEY"),
        ):
            if content is not None and not re.search(rb"-----BEGIN [A-Z0-9 ]*%s-----" % kind.encode(), content):
                raise ValueError(f"{name}: {getattr(self, name)} holds no {kind} in PEM")
        if key is not None and b"ENCRYPTED" in key:
            raise ValueError(f"key: {self.key} is encrypted, and gRPC asks for no password: decrypt it")
        if self.cert is not None:
            # gRPC would only say, at the first call, that it cannot connect.
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(self.cert, self.key)
            except ssl.SSLError as error:
                # What else OpenSSL has against them, such as a short key, is no trouble to gRPC.
                if error.reason in _MISMATCHES:
                    raise ValueError(f"key: {self.key} is not the key of the certificate in {self.cert}") from None
        return grpc.ssl_channel_credentials(root_certificates=ca, private_key=key, certificate_chain=cert)


@dataclass(frozen=True)
class Connection:
    """What connects a client to its servers.

    Attributes:
        address: the server, as host:port; or a list of replicas, where one name may stand for several.
        token: bearer token to send with each call.
        tls: talk TLS, with these files; plain text when None.
        metadata: what else to send with each call.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an address is none, or the token or the metadata cannot be sent.
    """

    address: str | Sequence[str]
    token: str | None = field(default=None, repr=False)
    tls: TlsConfig | None = None
    metadata: Mapping[str, str] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name, kind, what in (
            ("address", str | bytes | Sequence, _ADDRESS),
            ("token", str | None, "a str"),
            ("tls", TlsConfig | None, "a TlsConfig, such as TlsConfig() for public certificates"),
            ("metadata", Mapping | None, 'a mapping, such as {"x-team": "search"}'),
        ):
            check_type(name, getattr(self, name), kind, what)
        if not self.address:
            raise ValueError("address is empty: name a server as host:port, or a list of replicas")
        for address in self._addresses:
            _check_address(address)
        for key, value in (self.metadata or {}).items():
            check_type("a key of metadata", key, str, "a str")
            check_type(f"metadata[{key!r}]", value, str, "a str")
            if not re.fullmatch("[0-9a-z_.-]+", key) or key.startswith("grpc-") or key.endswith("-bin"):
                raise ValueError(
                    f"metadata has the key {key!r}; keys are of lower-case letters, digits and _.-, do not start with "
                    "grpc- and do not end with -bin"
                )
            if not re.fullmatch("[ -~]*", value):
                raise ValueError(f"metadata has a value for {key!r} that is not of printable ASCII characters")
        if self.token is not None and not re.fullmatch("[!-~]+", self.token):
            raise ValueError("the token must be of visible ASCII characters, without blanks or line ends")

    @property
    def balanced(self) -> bool:
        """Whether calls go to several replicas in turns."""
        return not isinstance(self.address, str)

    def channels(self) -> list[grpc.Channel]:
        """Opens a channel to each address.

        Raises:
            OSError: a TLS file cannot be read.
            ValueError: a TLS file holds something else.
        """
        if self.tls is None:
            return [grpc.insecure_channel(address, self._options) for address in self._addresses]
        credentials = self.tls.credentials()
        return [grpc.secure_channel(address, credentials, self._options) for address in self._addresses]

    def aio_channels(self) -> list[grpc.aio.Channel]:
        """Opens channels for asyncio; otherwise as `channels`."""
        if self.tls is None:
            return [grpc.aio.insecure_channel(address, self._options) for address in self._addresses]
        credentials = self.tls.credentials()
        return [grpc.aio.secure_channel(address, credentials, self._options) for address in self._addresses]

    def call_metadata(self) -> tuple[tuple[str, str], ...]:
        """Returns what goes with each call."""
        entries = tuple((self.metadata or {}).items())
        # As plain metadata: gRPC's call credentials refuse to go without TLS.
        return entries if self.token is None else (*entries, ("authorization", f"Bearer {self.token}"))

    @property
    def _addresses(self) -> Sequence[str]:
        return [self.address] if isinstance(self.address, str | bytes) else self.address

    @property
    def _options(self) -> tuple[tuple[str, str | int], ...]:
        return REPLICA_OPTIONS if self.balanced else CHANNEL_OPTIONS


def _check_address(address: str) -> None:
    check_type("address", address, str, _ADDRESS)
    ports = re.findall(r":([0-9]+)(?=,|$)", address)
    if not (_SOCKET.fullmatch(address) or (_HOSTS.fullmatch(address) and all(int(port) in _PORTS for port in ports))):
        raise ValueError(
            f"address {address!r} is none: a server is host:port, such as localhost:50051 or [::1]:50051, or "
            "unix:path; several replicas are a list of these"
        )


def remaining_s(timeout_s: float, request_id: str | None) -> float:
    """Returns the timeout to hand to gRPC, in seconds.

    Raises:
        DeadlineExceeded: nothing is left.
    """
    if not timeout_s > 0:
        raise DeadlineExceeded("the deadline had passed before the call", request_id=request_id)
    return min(timeout_s, _MAX_TIMEOUT_S)
