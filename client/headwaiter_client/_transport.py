"""How bytes reach a server: the seam between what a call means and how it is carried."""

import asyncio
from typing import Protocol

import grpc

from headwaiter_client._connection import CHANNEL_OPTIONS, TlsConfig, authorization, remaining_s
from headwaiter_client.errors import Cancelled, from_rpc


class Transport(Protocol):
    """Carries calls for threads, which may share it."""

    def unary(self, method: str, request: bytes, timeout_s: float, request_id: str | None = None) -> bytes:
        """Makes a call.

        Args:
            method: its gRPC path, such as "/headwaiter.v1.Encoder/Encode".
            request: the message.
            timeout_s: seconds until the deadline.
            request_id: what errors call the request.

        Raises:
            HeadwaiterError: the call failed.
        """

    def close(self) -> None:
        """Ends calls in flight, and later ones, as `Cancelled`."""


class AsyncTransport(Protocol):
    """Carries calls for one event loop: `Transport`, with methods to await."""

    async def unary(self, method: str, request: bytes, timeout_s: float, request_id: str | None = None) -> bytes:
        """Makes a call; see `Transport.unary`. Cancelling the task cancels the call on the server too."""

    async def close(self) -> None:
        """Ends calls in flight, and later ones, as `Cancelled`."""


class GrpcTransport:
    """Carries calls over gRPC.

    Args:
        address: the server, as host:port.
        token: bearer token to send with each call.
        tls: talk TLS, with these files; plain text when None.

    Raises:
        ValueError: the token cannot be sent in a header.
        OSError: a TLS file cannot be read.
    """

    def __init__(self, address: str, *, token: str | None = None, tls: TlsConfig | None = None) -> None:
        self._metadata = authorization(token)
        self._channel = (
            grpc.secure_channel(address, tls.credentials(), CHANNEL_OPTIONS)
            if tls
            else grpc.insecure_channel(address, CHANNEL_OPTIONS)
        )

    def unary(self, method: str, request: bytes, timeout_s: float, request_id: str | None = None) -> bytes:
        """Makes a call; see `Transport.unary`."""
        timeout_s = remaining_s(timeout_s, request_id)
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(method)
        try:
            return call(request, timeout=timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise from_rpc(error, timeout_s=timeout_s, request_id=request_id) from error
        except ValueError as error:  # What gRPC says of a closed channel, and of nothing else that we hand it.
            raise Cancelled("the client is closed", request_id=request_id) from error

    def close(self) -> None:
        """Ends calls in flight, and later ones, as `Cancelled`."""
        self._channel.close()


class AsyncGrpcTransport:
    """Carries calls over gRPC from one event loop, where it must be made; otherwise as `GrpcTransport`."""

    def __init__(self, address: str, *, token: str | None = None, tls: TlsConfig | None = None) -> None:
        self._metadata = authorization(token)
        self._channel = (
            grpc.aio.secure_channel(address, tls.credentials(), CHANNEL_OPTIONS)
            if tls
            else grpc.aio.insecure_channel(address, CHANNEL_OPTIONS)
        )

    async def unary(self, method: str, request: bytes, timeout_s: float, request_id: str | None = None) -> bytes:
        """Makes a call; see `AsyncTransport.unary`."""
        timeout_s = remaining_s(timeout_s, request_id)
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(method)
        try:
            return await call(request, timeout=timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise from_rpc(error, timeout_s=timeout_s, request_id=request_id) from error
        except grpc.aio.UsageError as error:
            raise Cancelled("the client is closed", request_id=request_id) from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task and task.cancelling():
                raise
            # Nobody cancelled the task: the channel was closed under the call.
            raise Cancelled("the client was closed before the answer came", request_id=request_id) from error

    async def close(self) -> None:
        """Ends calls in flight, and later ones, as `Cancelled`."""
        await self._channel.close()
