"""The client for asyncio."""

import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self, SupportsIndex, TypeVar, Unpack

from google.protobuf.message import Message
from numpy.typing import ArrayLike

from headwaiter_client import _attention, _connection, _core
from headwaiter_client._retry import DEFAULT_RETRY, RetryPolicy
from headwaiter_client._transport import AsyncGrpcTransport, AsyncTransport
from headwaiter_proto import encoder_pb2 as pb

_Reply = TypeVar("_Reply", bound=Message)


class AsyncClient:
    """Calls a Headwaiter server from one event loop: `Client`, with methods to await.

    Make it where the loop runs. Arguments, results and errors are those of `Client`; cancelling a task that awaits a
    call cancels the call on the server too.
    """

    def __init__(
        self,
        address: str | Sequence[str],
        *,
        token: str | None = None,
        tls: _connection.TlsConfig | None = None,
        metadata: Mapping[str, str] | None = None,
        retry: RetryPolicy = DEFAULT_RETRY,
        timeout_s: float = 30.0,
    ) -> None:
        self._timeout_s = timeout_s
        connection = _connection.Connection(address, token, tls, metadata)
        self._transport: AsyncTransport = AsyncGrpcTransport(connection, retry)

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
        response = await self._call("Attend", pb.AttendResponse, request, timeout_s, request.request_id)
        return _attention.attention(response, round_trip_s=time.perf_counter() - started_s)

    async def models(self, *, timeout_s: float | None = None) -> list[_core.ModelRef]:
        """Lists the models the server holds."""
        response = await self._call("ListModels", pb.ListModelsResponse, pb.ListModelsRequest(), timeout_s)
        return [_core.model_ref(model) for model in response.models]

    async def model(self, name: str = "", *, timeout_s: float | None = None) -> pb.GetModelResponse:
        """Describes one model; see `Client.model`."""
        return await self._call("GetModel", pb.GetModelResponse, _core.model_request(name), timeout_s)

    async def is_serving(self, *, timeout_s: float | None = None) -> bool:
        """Asks the server's health service whether it takes requests."""
        raw = await self._transport.unary(_core.HEALTH_METHOD, _core.HEALTH_REQUEST, self._within_s(timeout_s))
        return raw == _core.HEALTH_SERVING

    async def close(self) -> None:
        """Closes the connection; calls in flight, and later ones, end as `Cancelled`."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _encode(self, request: pb.EncodeRequest, timeout_s: float | None) -> _core.Encoding:
        started_s = time.perf_counter()
        response = await self._call("Encode", pb.EncodeResponse, request, timeout_s, request.request_id)
        return _core.encoding(response, round_trip_s=time.perf_counter() - started_s)

    async def _call(
        self,
        method: str,
        kind: type[_Reply],
        request: Message,
        timeout_s: float | None,
        request_id: str | None = None,
    ) -> _Reply:
        raw = await self._transport.unary(
            _core.METHODS[method], request.SerializeToString(), self._within_s(timeout_s), request_id
        )
        return _core.parse(raw, kind, request_id)

    def _within_s(self, timeout_s: float | None) -> float:
        return self._timeout_s if timeout_s is None else timeout_s
