"""Adds services of other packages to a server, without slowing the calls of our own."""

from collections.abc import Mapping, Sequence
from typing import Any

import grpc


class GenericHandlers:
    """Stands in for a server when a generated function adds a service, and passes on its generic handlers alone.

    Such a function also registers each method by name. The asyncio server of newer grpcio then keeps a separate wait
    for each registered method, and every call of any method pays for all of them.

    Args:
        server: takes the handlers.
    """

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Let the server dispatch to a service."""
        self._server.add_generic_rpc_handlers(tuple(handlers))

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Register none: the generic handlers answer the same methods."""
