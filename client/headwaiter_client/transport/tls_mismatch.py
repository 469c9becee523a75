"""Find out whether a server cannot be reached because one side speaks TLS and the other does not.

gRPC connects to each IP address of a host, and reports the error of the last one alone. For "localhost", that is often
"Connection refused" of the address family on which no server listens.
"""

import re
import socket
import ssl
from contextlib import suppress

from headwaiter_client.transport.connection import Connection

# gRPC's messages when it could not connect, or when the server closed the connection at once.
_NO_CONNECTION = re.compile("Connection refused|Socket closed|Connection reset|handshake failed|Broken pipe")
_HOST_PORT = re.compile(r"(?:dns:(?://[^/]*/)?)?\[?(?P<host>[^/\[\]]+?)\]?:(?P<port>\d+)")
_TIMEOUT_S = 1.0


class TlsMismatch:
    """Looks at each address once, because the answer seldom changes.

    Args:
        connection: the addresses and the files.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._found: dict[int, str | None] = {}

    def is_worth_a_look(self, index: int, message: str) -> bool:
        """Return whether an error's message may hide a mismatch that is not known yet."""
        return index not in self._found and _NO_CONNECTION.search(message) is not None

    def look(self, index: int) -> None:
        """Connect to an address; this takes at most two seconds, and usually milliseconds."""
        self._found[index] = None
        address = _HOST_PORT.fullmatch(self._connection.addresses[index])
        if address:
            with suppress(OSError):  # No server listens, which gRPC's own message says.
                self._found[index] = self._handshake(address["host"], int(address["port"]))

    def message(self, index: int) -> str | None:
        """Return the message about the mismatch, or None if there is none or `look` was not called."""
        return self._found.get(index)

    def _handshake(self, host: str, port: int) -> str | None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # The handshake sends nothing secret, and shows only whether the server speaks TLS.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        with socket.create_connection((host, port), _TIMEOUT_S) as connection:
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
