"""Adds services that others wrote to a server, at no cost to the calls of ours."""

from collections.abc import Mapping, Sequence
from typing import Any

import grpc


class GenericHandlers:
    """Stands for a server where a generated function adds a service to it, and takes the service's handlers alone.

    Such a function registers each method by its name, too. Newer versions of grpcio's asyncio server then wait for a
    call of each registered method at once, so that every call of any method pays for all of them.

    Args:
        server: what serves.
    """

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Let the server dispatch to a service."""
        self._server.add_generic_rpc_handlers(tuple(handlers))

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Register none: the generic handlers answer the same methods."""
