"""Add services of other packages to a gRPC server without slowing down the other calls."""

from collections.abc import Mapping, Sequence
from typing import Any

import grpc


class GenericHandlers:
    """Stands in for a server when generated code adds a service, and passes on only the service's generic handlers.

    Generated code also registers each method by name. The asyncio server of newer grpcio versions then waits
    separately for each registered method, which slows down every call of every method.
    """

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Add the generic handlers of a service to the server."""
        self._server.add_generic_rpc_handlers(tuple(handlers))

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Ignore registered methods: the generic handlers answer the same methods."""
