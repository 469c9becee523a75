"""Serve a registry of Prometheus metrics over HTTP."""

import asyncio

from prometheus_client import CollectorRegistry, start_http_server


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
        self.port: int = self._server.server_port

    async def stop(self) -> None:
        """Stop listening and free the port."""
        await asyncio.to_thread(self._server.shutdown)
        self._server.server_close()
