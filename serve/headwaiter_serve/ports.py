"""Check before an export, which takes minutes, that the server can listen after it."""

import errno
import socket

from headwaiter_server.settings.flags import Settings


class PortInUse(Exception):
    """Another process has a port of the server; the message is one sentence that names the flag."""


def check_ports(settings: Settings) -> None:
    """Check that no other process has a port of the server.

    Raises:
        PortInUse: a process has one.
    """
    host, _, port = settings.address.rpartition(":")
    addresses = {f"--address {settings.address}": (host.strip("[]"), int(port)), **settings.http_addresses}
    for flag, address in addresses.items():
        try:
            socket.create_server(address, family=socket.AF_INET6 if ":" in address[0] else socket.AF_INET).close()
        except OSError as error:
            # The server itself reports other errors, because it may know more forms of addresses.
            if error.errno == errno.EADDRINUSE:
                raise PortInUse(
                    f"another process has the port of {flag}: choose another port, or end that process"
                ) from None
