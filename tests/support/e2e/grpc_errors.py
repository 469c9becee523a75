"""Facts about the gRPC status behind an error of the client."""

from typing import cast

import grpc
from grpc_status import rpc_status

from headwaiter_client import HeadwaiterError


def code_of(error: HeadwaiterError) -> grpc.StatusCode:
    """Return the gRPC code of the call that failed."""
    return cast("grpc.Call", error.__cause__).code()


def is_from_server(error: HeadwaiterError) -> bool:
    """Return whether the server sent the error; gRPC itself reports lost connections, without status details."""
    return rpc_status.from_call(cast("grpc.Call", error.__cause__)) is not None
