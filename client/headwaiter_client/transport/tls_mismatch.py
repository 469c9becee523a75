"""Find out whether a server cannot be reached because one side speaks TLS and the other does not.

gRPC connects to each IP address of a host, and reports the error of the last one alone. For "localhost", that is often
"Connection refused" of the address family on which no server listens.
"""

import re
import socket
import ssl
import time
from contextlib import suppress

from headwaiter_client.transport.connection import Connection

# gRPC's messages when it could not connect, or when the server closed the connection at once.
_NO_CONNECTION = re.compile("Connection refused|Socket closed|Connection reset|handshake failed|Broken pipe")
_HOST_PORT = re.compile(r"(?:dns:(?://[^/]*/)?)?\[?(?P<host>[^/\[\]]+?)\]?:(?P<port>\d+)")
# Longest time that a check takes, over all IP addresses of a host.
_TIMEOUT_S = 1.0
_MIN_WAIT_S = 0.001  # A timeout of 0 would make a socket non-blocking.


class TlsMismatch:
    """Checks each address until a server has accepted a connection, because the answer seldom changes afterwards.

    Args:
        connection: the addresses and the files.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._results: dict[int, str | None] = {}

    def should_check(self, index: int, message: str) -> bool:
        """Return whether an error's message may hide a mismatch that is not known yet."""
        return index not in self._results and _NO_CONNECTION.search(message) is not None

    def check(self, index: int, deadline_s: float) -> None:
        """Connect to an address, before a deadline; this takes at most a second, and usually milliseconds."""
        address = _HOST_PORT.fullmatch(self._connection.addresses[index])
        if not address:
            return
        host, port = address["host"], int(address["port"])
        ends_s = min(deadline_s, time.monotonic() + _TIMEOUT_S)
        with suppress(OSError), _connect(host, port, ends_s) as connection:
            self._results[index] = None
            connection.settimeout(max(ends_s - time.monotonic(), _MIN_WAIT_S))
            self._results[index] = self._handshake(connection, host, port)

    def message(self, index: int) -> str | None:
        """Return the message about the mismatch, or None if no check has found one."""
        return self._results.get(index)

    def _handshake(self, connection: socket.socket, host: str, port: int) -> str | None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # The handshake sends nothing secret, and shows only whether the server speaks TLS.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        try:
            context.wrap_socket(connection, server_hostname=host).close()
        except ssl.SSLError as error:
            if self._connection.tls is None or error.reason != "WRONG_VERSION_NUMBER":
                return None
            return (
                f"no Headwaiter server answered (UNAVAILABLE: {host}:{port} does not speak TLS): leave tls out, or "
                "use the port for TLS"
            )
        if self._connection.tls is not None:
            return None
        return (
            f"no Headwaiter server answered (UNAVAILABLE: {host}:{port} speaks TLS, and this client does not): pass "
            "tls=TlsConfig()"
        )


def _connect(host: str, port: int, ends_s: float) -> socket.socket:
    """Connect to the first IP address of a host on which a server listens.

    Raises:
        OSError: no server accepts a connection in time.
    """
    for *_, (ip, *_) in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        left_s = ends_s - time.monotonic()
        if left_s <= 0:
            break
        with suppress(OSError):
            return socket.create_connection((str(ip), port), left_s)
    raise OSError(f"no connection to {host}:{port} in time")
