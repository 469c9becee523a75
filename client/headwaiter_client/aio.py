"""The client for asyncio."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from inspect import iscoroutinefunction
from itertools import islice
from os import PathLike
from typing import Any, NoReturn, Self, TypeVar, Unpack, overload

from numpy.typing import ArrayLike

from headwaiter_client.calls import steps
from headwaiter_client.calls.attend import Attention, attend_request
from headwaiter_client.calls.batches import Batch
from headwaiter_client.calls.classify import Classification, ClassifyCall, Ranking, RerankCall
from headwaiter_client.calls.encode import EncodeCall, OneTextCall, StreamCall
from headwaiter_client.calls.input_kinds import FeatureInput, ImageInput, TextInput, TokenInput
from headwaiter_client.calls.list_call import CallSettings, ListCall
from headwaiter_client.calls.models import ModelDescription, ModelRef, ModelVersion, describe
from headwaiter_client.calls.options import (
    AttendOptions,
    ClassifyOptions,
    DefaultOptions,
    ListOptions,
    RerankOptions,
    StreamOptions,
    TokenizeOptions,
)
from headwaiter_client.calls.results import Encoding, ListResult, SequenceEncoding
from headwaiter_client.calls.shared_requests import server_count
from headwaiter_client.calls.splitting import Chunk
from headwaiter_client.calls.steps import Steps, run_steps_async
from headwaiter_client.calls.tokenize import Tokenization, TokenizeCall
from headwaiter_client.request_sharing import TaskSharing
from headwaiter_client.streams import TaskStream
from headwaiter_client.transport.connection import NOT_PICKLED, Connection, TlsConfig, described
from headwaiter_client.transport.grpc_transports import AsyncGrpcTransport
from headwaiter_client.transport.interface import AsyncTransport
from headwaiter_client.transport.retries import DEFAULT_RETRY, RetryPolicy
from headwaiter_client.transport.trace_context import has_span
from headwaiter_proto.rules.errors import HeadwaiterError

_Result = TypeVar("_Result")
_ListResult = TypeVar("_ListResult", bound=ListResult)


class AsyncClient:
    """Calls a Headwaiter server from one event loop: the loop of its first call.

    Arguments, results and errors are those of `Client`. Cancelling a task that awaits a call cancels the call on the
    server too.
    """

    def __init__(
        self,
        address: str | Sequence[str] | None = None,
        *,
        token: str | None = None,
        tls: TlsConfig | None = None,
        metadata: Mapping[str, str] | None = None,
        interceptors: Sequence[Any] = (),
        channel_options: Sequence[tuple[str, Any]] = (),
        retry: RetryPolicy = DEFAULT_RETRY,
        timeout_s: float = 30.0,
        max_in_flight: int = 8,
        share_requests: bool = True,
        transport: AsyncTransport | None = None,
        **options: Unpack[DefaultOptions],
    ) -> None:
        self._settings = CallSettings(timeout_s, max_in_flight, options)
        if transport is not None and not iscoroutinefunction(transport.unary):
            raise TypeError(f"transport {type(transport).__name__} cannot be awaited: pass AsyncFakeEncoder(fake)")
        self._transport = transport or AsyncGrpcTransport(
            Connection(() if address is None else address, token, tls, metadata, interceptors, channel_options), retry
        )
        self._address = address
        servers = server_count(None if transport else address)
        self._sharing = TaskSharing(servers) if share_requests and not interceptors else None

    @overload
    async def encode(  # type: ignore[overload-overlap]
        self, texts: str, **options: Unpack[ListOptions]
    ) -> SequenceEncoding: ...

    @overload
    async def encode(self, texts: Iterable[str], **options: Unpack[ListOptions]) -> Encoding: ...

    async def encode(self, texts: str | Iterable[str], **options: Unpack[ListOptions]) -> Encoding | SequenceEncoding:
        """Encode texts; see `Client.encode`."""
        if isinstance(texts, str):
            call = OneTextCall(self._settings, TextInput(), [texts], options)
            encoding: SequenceEncoding = await self._send_one(call, call.chunk())
            return encoding
        return await self._list(EncodeCall(self._settings, TextInput(), texts, options))

    async def encode_tokens(self, sequences: Iterable[ArrayLike], **options: Unpack[ListOptions]) -> Encoding:
        """Encode token ids; see `Client.encode_tokens`."""
        return await self._list(EncodeCall(self._settings, TokenInput(), sequences, options))

    async def encode_features(self, sequences: Iterable[ArrayLike], **options: Unpack[ListOptions]) -> Encoding:
        """Encode feature vectors; see `Client.encode_features`."""
        return await self._list(EncodeCall(self._settings, FeatureInput(), sequences, options))

    async def encode_images(self, images: Iterable[bytes | PathLike[str]], **options: Unpack[ListOptions]) -> Encoding:
        """Encode images; see `Client.encode_images`. Paths are read in the event loop."""
        return await self._list(EncodeCall(self._settings, ImageInput(), images, options))

    async def classify(
        self, sequences: Iterable[str | tuple[str, str] | PathLike[str] | ArrayLike], **options: Unpack[ClassifyOptions]
    ) -> Classification:
        """Return the scores of each sequence for the labels of the model; see `Client.classify`."""
        return await self._list(ClassifyCall(self._settings, None, sequences, options))

    async def tokenize(self, texts: Iterable[str], **options: Unpack[TokenizeOptions]) -> Tokenization:
        """Return the token ids of texts; see `Client.tokenize`."""
        return await self._list(TokenizeCall(self._settings, TextInput(), texts, options))

    async def count_tokens(self, texts: Iterable[str], **options: Unpack[TokenizeOptions]) -> list[int]:
        """Return the number of tokens of each text; see `Client.count_tokens`."""
        return [*map(int, (await self.tokenize(texts, **options)).lengths)]

    async def rerank(self, query: str, documents: Iterable[str], **options: Unpack[RerankOptions]) -> Ranking:
        """Return documents by their scores for a query, the best first; see `Client.rerank`."""
        call = RerankCall(self._settings, query, documents, options)
        return call.rank(await self._list(call))

    def encode_stream(
        self,
        sequences: Iterable[str | PathLike[str] | ArrayLike] | AsyncIterable[str | PathLike[str] | ArrayLike],
        **options: Unpack[StreamOptions],
    ) -> AsyncGenerator[SequenceEncoding, None]:
        """Encode the sequences of an iterable or an async iterable; see `Client.encode_stream`.

        Pass an async iterable if the source is slow: a plain iterable is read in the event loop, and blocks it. A task
        of its own reads an async iterable. Closing the generator early cancels this task and the requests in flight;
        `contextlib.aclosing` closes it after an exception too.
        """
        return self._stream(StreamCall(self._settings, None, sequences, options, accepts_async=True))

    async def attend(
        self,
        sequence: str | tuple[str, str] | bytes | PathLike[str] | ArrayLike,
        **options: Unpack[AttendOptions],
    ) -> Attention:
        """Return the attention weights of one sequence; see `Client.attend`."""
        request = attend_request(sequence, **self._settings.defaults.merged(options, AttendOptions))
        return await self._run(steps.attend(request, self._settings.timeout_s(options.get("timeout_s"))))

    async def models(self, *, timeout_s: float | None = None) -> list[ModelVersion]:
        """Return the versions of the server's models; see `Client.models`."""
        return await self._run(steps.models(self._settings.timeout_s(timeout_s)))

    async def batches(self, model: str = "", *, timeout_s: float | None = None) -> list[Batch]:
        """Return the latest batches that the server has run; see `Client.batches`."""
        return await self._run(steps.batches(model, self._settings.timeout_s(timeout_s)))

    async def load(self, name: str, *, timeout_s: float = steps.LOAD_TIMEOUT_S) -> ModelRef:
        """Have the server load a model; see `Client.load`."""
        return await self._run(steps.load(name, self._settings.timeout_s(timeout_s)))

    async def unload(self, name: str, *, timeout_s: float | None = None) -> None:
        """Have the server unload a model; see `Client.unload`."""
        await self._run(steps.unload(name, self._settings.timeout_s(timeout_s)))

    async def model(self, name: str = "", *, version: str = "", timeout_s: float | None = None) -> ModelDescription:
        """Return the description of one model; see `Client.model`."""
        name, version = self._settings.defaults.model(name, version)
        return describe(await self._run(steps.model(name, version, self._settings.timeout_s(timeout_s))))

    async def is_serving(self, *, timeout_s: float | None = None) -> bool:
        """Return whether the server's health check answers SERVING; see `Client.is_serving`."""
        return await self._run(steps.is_serving(self._settings.timeout_s(timeout_s)))

    async def wait_ready(self, *, timeout_s: float | None = None) -> None:
        """Wait until the server accepts requests; see `Client.wait_ready`."""
        await self._run(steps.wait_ready(self._settings.timeout_s(timeout_s)))

    async def close(self) -> None:
        """Close the connection; calls in flight, and all later calls, raise `Cancelled`."""
        await self._transport.close()

    def __repr__(self) -> str:
        return described(self, self._address, self._transport)

    def __reduce__(self) -> NoReturn:
        raise TypeError(NOT_PICKLED.format(name="AsyncClient"))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _list(self, call: ListCall[_ListResult]) -> _ListResult:
        chunks = await self._run(call.split())
        if len(chunks) == 1:
            result: _ListResult = await self._send_one(call, chunks[0])
            return result
        try:
            async with aclosing(self._send_all(chunks, call.send_part)) as parts:
                async for part in parts:
                    call.note_progress(part)
        except HeadwaiterError as error:
            await asyncio.to_thread(call.add_finished, error)
            raise
        # Joining many results copies much memory, so that other tasks would wait.
        return await asyncio.to_thread(call.joined)

    async def _send_one(self, call: ListCall[Any], chunk: Chunk) -> Any:
        """Send a call that one request holds; share the request with other calls if possible."""
        if self._sharing and not has_span():
            return await self._sharing.send(call, chunk, self._run)
        return await self._run(call.send_all(chunk))

    async def _stream(self, call: StreamCall) -> AsyncGenerator[SequenceEncoding, None]:
        limits = await self._run(call.limits())

        async def send(chunk: Chunk) -> list[SequenceEncoding]:
            return await self._run(call.send_chunk(chunk))

        async with aclosing(TaskStream(call, limits, send)) as stream:
            while (part := await stream.next_part()) is not None:
                for result in part:
                    yield result

    async def _send_all(
        self, chunks: Iterable[Chunk], send: Callable[[Chunk], Steps[_Result]]
    ) -> AsyncGenerator[_Result, None]:
        """Send chunks, up to `max_in_flight` at once, and yield their results in order; see `Client._send_all`."""
        pending: deque[asyncio.Task[_Result]] = deque()
        to_send = iter(chunks)
        try:
            while True:
                for chunk in islice(to_send, self._settings.max_in_flight - len(pending)):
                    pending.append(asyncio.create_task(self._run(send(chunk))))
                if not pending:
                    return
                # Remove the task only after the await, because a cancellation during the await must still cancel it.
                result = await pending[0]
                pending.popleft()
                yield result
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)

    async def _run(self, call: Steps[_Result]) -> _Result:
        """Take all steps of a call, and return the result of the call."""
        return await run_steps_async(call, self._take)

    async def _take(self, step: steps.Call | steps.Pause) -> steps.Outcome:
        """Take one step, and return the outcome of the step."""
        if isinstance(step, steps.Pause):
            await asyncio.sleep(step.pause_s)
            return None
        return step.read(await self._transport.unary(step.method, step.request, step.timeout_s, step.request_id))
