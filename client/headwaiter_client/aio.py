"""The client for asyncio."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any, Self, SupportsIndex, Unpack

import grpc
from numpy.typing import ArrayLike

from headwaiter_client import _attention, _connection, _core
from headwaiter_client.errors import Cancelled, HeadwaiterError, from_rpc
from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.encoder_pb2_grpc import EncoderStub


class AsyncClient:
    """Calls a Headwaiter server from one event loop: `Client`, with methods to await.

    Make it where the loop runs. Arguments, results and errors are those of `Client`; cancelling a task that awaits a
    call cancels the call on the server too.
    """

    def __init__(
        self,
        address: str,
        *,
        token: str | None = None,
        tls: _connection.TlsConfig | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        self._timeout_s = timeout_s
        self._metadata = _connection.authorization(token)
        self._channel = (
            grpc.aio.secure_channel(address, tls.credentials(), _connection.CHANNEL_OPTIONS)
            if tls
            else grpc.aio.insecure_channel(address, _connection.CHANNEL_OPTIONS)
        )
        self._stub = EncoderStub(self._channel)  # type: ignore[no-untyped-call]
        self._check_health: Callable[..., Awaitable[bytes]] = self._channel.unary_unary(_core.HEALTH_METHOD)

    async def encode(
        self, texts: Iterable[str], *, timeout_s: float | None = None, **options: Unpack[_core.RequestOptions]
    ) -> _core.Encoding:
        """Encodes texts; see `Client.encode`."""
        return await self._encode(_core.texts_request(texts, **options), timeout_s)

    async def encode_tokens(
        self, sequences: Iterable[ArrayLike], *, timeout_s: float | None = None, **options: Unpack[_core.RequestOptions]
    ) -> _core.Encoding:
        """Encodes token ids; see `Client.encode_tokens`."""
        return await self._encode(_core.tokens_request(sequences, **options), timeout_s)

    async def encode_features(
        self, sequences: Iterable[ArrayLike], *, timeout_s: float | None = None, **options: Unpack[_core.RequestOptions]
    ) -> _core.Encoding:
        """Encodes feature vectors; see `Client.encode_features`."""
        return await self._encode(_core.features_request(sequences, **options), timeout_s)

    async def attend(
        self,
        sequence: str | ArrayLike,
        *,
        layers: Iterable[SupportsIndex] | None = None,
        heads: Iterable[SupportsIndex] | None = None,
        query: SupportsIndex | None = None,
        model: str = "",
        request_id: str = "",
        timeout_s: float | None = None,
    ) -> _attention.Attention:
        """Shows what attention looked at in one sequence; see `Client.attend`."""
        request = _attention.attend_request(
            sequence, layers=layers, heads=heads, query=query, model=model, request_id=request_id
        )
        started_s = time.perf_counter()
        response = await self._call(self._stub.Attend, request, timeout_s, request.request_id)
        return _attention.attention(response, round_trip_s=time.perf_counter() - started_s)

    async def models(self, *, timeout_s: float | None = None) -> list[_core.ModelRef]:
        """Lists the models the server holds."""
        response = await self._call(self._stub.ListModels, pb.ListModelsRequest(), timeout_s)
        return [_core.model_ref(model) for model in response.models]

    async def model(self, name: str = "", *, timeout_s: float | None = None) -> pb.GetModelResponse:
        """Describes one model; see `Client.model`."""
        response: pb.GetModelResponse = await self._call(self._stub.GetModel, _core.model_request(name), timeout_s)
        return response

    async def is_serving(self, *, timeout_s: float | None = None) -> bool:
        """Asks the server's health service whether it takes requests."""
        return bool(await self._call(self._check_health, _core.HEALTH_REQUEST, timeout_s) == _core.HEALTH_SERVING)

    async def close(self) -> None:
        """Closes the connection; calls in flight, and later ones, end as `Cancelled`."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _encode(self, request: pb.EncodeRequest, timeout_s: float | None) -> _core.Encoding:
        started_s = time.perf_counter()
        response = await self._call(self._stub.Encode, request, timeout_s, request.request_id)
        return _core.encoding(response, round_trip_s=time.perf_counter() - started_s)

    async def _call(
        self,
        method: Callable[..., Awaitable[Any]],
        request: object,
        timeout_s: float | None,
        request_id: str | None = None,
    ) -> Any:
        timeout_s = _connection.remaining_s(self._timeout_s if timeout_s is None else timeout_s, request_id)
        try:
            response = await method(request, timeout=timeout_s, metadata=self._metadata)
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
        if response is None:  # Where the other kind of channel fails with INTERNAL, this one only logs.
            raise HeadwaiterError("INTERNAL: the reply is not the message the contract names", request_id=request_id)
        return response
