"""Find out whether a server cannot be reached because one side speaks TLS and the other does not."""

import re
import ssl

_HOST_PORT = re.compile(r"(?:dns:(?://[^/]*/)?)?\[?(?P<host>[^/\[\]]+?)\]?:(?P<port>\d+)")
# gRPC's messages when it could not connect, or when the server closed the connection at once.
_NO_CONNECTION = re.compile("Connection refused|Socket closed|Connection reset|handshake failed|Broken pipe")


def tls_mismatch(address: str, cause: str, *, has_tls: bool, left_s: float) -> str | None:
    """Connect to a server, and return a better message than `cause` if there is a mismatch.

    gRPC itself reports the error of one IP address of a host: of "localhost", often that on which no server listens.
    """
    target = _HOST_PORT.fullmatch(address)
    if not target or not _NO_CONNECTION.search(cause) or left_s <= 0:
        return None
    found, advice = "speaks TLS, and this client does not", "pass tls=TlsConfig()"
    try:  # The handshake sends nothing secret, and checks no certificate.
        ssl.get_server_certificate((target["host"], int(target["port"])), timeout=min(left_s, 1.0))
        if has_tls:
            return None
    except OSError as error:
        if not has_tls or not isinstance(error, ssl.SSLError) or error.reason != "WRONG_VERSION_NUMBER":
            return None
        found, advice = "does not speak TLS", "leave tls out, or use the port for TLS"
    return f"no Headwaiter server answered (UNAVAILABLE: {address} {found}): {advice}"
