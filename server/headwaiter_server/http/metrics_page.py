"""Serve a registry of Prometheus metrics over HTTP."""

import asyncio
import logging
import sys
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server

from headwaiter_server.runtime.errors import one_line

log = logging.getLogger(__name__)

# A caller that sends nothing for this long is disconnected, because each connection occupies a thread.
_TIMEOUT_S = 10.0


class MetricsPage:
    """An HTTP endpoint for Prometheus metrics, served by a thread of its own.

    Attributes:
        port: the port that the endpoint listens on.
    """

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        """Listen on a port; port 0 takes a free port.

        Raises:
            OSError: the port is in use, or the host is not an address of this computer.
        """
        self._server, _ = start_http_server(port, host, registry)
        handler: Any = self._server.RequestHandlerClass
        self._server.RequestHandlerClass = type("Handler", (handler,), {"timeout": _TIMEOUT_S})
        # The default writes a traceback to standard error whenever a caller breaks off its connection.
        self._server.handle_error = _log_error  # type: ignore[method-assign]
        self.port: int = self._server.server_port

    async def stop(self) -> None:
        """Stop listening and free the port."""
        await asyncio.to_thread(self._server.shutdown)
        self._server.server_close()


def _log_error(request: object, client_address: object) -> None:
    log.info("a request to the metrics port failed: %s", one_line(sys.exc_info()[1]))
