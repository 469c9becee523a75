"""The client for asyncio."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from inspect import iscoroutinefunction
from types import TracebackType
from typing import Any, Self, SupportsIndex, TypeVar, Unpack

from numpy.typing import ArrayLike

from headwaiter_client.calls import attention_weights as _attention
from headwaiter_client.calls import splitting as _chunks
from headwaiter_client.calls import steps as _core
from headwaiter_client.calls.encode import Gathering, Job, Jobs, Progress, next_of
from headwaiter_client.calls.inputs import Features, Form, Texts, Tokens
from headwaiter_client.calls.options import RequestOptions
from headwaiter_client.calls.results import Encoding, ModelRef, SequenceEncoding
from headwaiter_client.calls.splitting import Chunk, Cutter
from headwaiter_client.errors import HeadwaiterError
from headwaiter_client.transport.connection import Connection, TlsConfig
from headwaiter_client.transport.grpc_transport import AsyncGrpcTransport, AsyncTransport
from headwaiter_client.transport.retries import DEFAULT_RETRY, RetryPolicy
from headwaiter_proto import encoder_pb2 as pb

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class AsyncClient:
    """Calls a Headwaiter server from one event loop: `Client`, with methods to await.

    Make it where the loop runs. Arguments, results and errors are those of `Client`; cancelling a task that awaits a
    call cancels the call on the server too.
    """

    def __init__(
        self,
        address: str | Sequence[str] | None = None,
        *,
        token: str | None = None,
        tls: TlsConfig | None = None,
        metadata: Mapping[str, str] | None = None,
        retry: RetryPolicy = DEFAULT_RETRY,
        timeout_s: float = 30.0,
        max_in_flight: int = 8,
        transport: AsyncTransport | None = None,
    ) -> None:
        self._jobs = Jobs(timeout_s, max_in_flight)
        if transport is not None and not iscoroutinefunction(transport.unary):
            raise TypeError(
                f"transport is of type {type(transport).__name__}, which cannot be awaited; of a FakeEncoder, "
                "AsyncFakeEncoder(fake) can"
            )
        self._transport = transport or AsyncGrpcTransport(
            Connection(() if address is None else address, token, tls, metadata), retry
        )

    async def encode(
        self,
        texts: Iterable[str],
        *,
        timeout_s: float | None = None,
        progress: Progress | None = None,
        **options: Unpack[RequestOptions],
    ) -> Encoding:
        """Encodes texts; see `Client.encode`."""
        return await self._encode(Texts(), texts, timeout_s, progress, options)

    async def encode_tokens(
        self,
        sequences: Iterable[ArrayLike],
        *,
        timeout_s: float | None = None,
        progress: Progress | None = None,
        **options: Unpack[RequestOptions],
    ) -> Encoding:
        """Encodes token ids; see `Client.encode_tokens`."""
        return await self._encode(Tokens(), sequences, timeout_s, progress, options)

    async def encode_features(
        self,
        sequences: Iterable[ArrayLike],
        *,
        timeout_s: float | None = None,
        progress: Progress | None = None,
        **options: Unpack[RequestOptions],
    ) -> Encoding:
        """Encodes feature vectors; see `Client.encode_features`."""
        return await self._encode(Features(), sequences, timeout_s, progress, options)

    def encode_stream(
        self,
        sequences: Iterable[str | ArrayLike] | AsyncIterable[str | ArrayLike],
        *,
        ordered: bool = True,
        timeout_s: float | None = None,
        **options: Unpack[RequestOptions],
    ) -> AsyncGenerator[SequenceEncoding, None]:
        """Encodes what an iterable of either kind yields, an async one if it is slow; see `Client.encode_stream`.

        Closing the iterator cancels the requests on their way; `contextlib.aclosing` does so whatever happens.
        """
        return self._stream(self._jobs.of_stream(sequences, timeout_s, options), sequences, ordered)

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
        return await self._run(_core.attend(request, self._jobs.within_s(timeout_s)))

    async def models(self, *, timeout_s: float | None = None) -> list[ModelRef]:
        """Lists the models the server holds."""
        return await self._run(_core.models(self._jobs.within_s(timeout_s)))

    async def model(self, name: str = "", *, timeout_s: float | None = None) -> pb.GetModelResponse:
        """Describes one model; see `Client.model`."""
        return await self._run(_core.model(name, self._jobs.within_s(timeout_s)))

    async def is_serving(self, *, timeout_s: float | None = None) -> bool:
        """Asks whether the server takes requests; see `Client.is_serving`."""
        return await self._run(_core.is_serving(self._jobs.within_s(timeout_s)))

    async def wait_ready(self, *, timeout_s: float | None = None) -> None:
        """Returns once the server takes requests; see `Client.wait_ready`."""
        await self._run(_core.wait_ready(self._jobs.within_s(timeout_s)))

    async def close(self) -> None:
        """Closes the connection; calls in flight, and later ones, end as `Cancelled`."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _encode(
        self,
        form: Form,
        sequences: Iterable[Any],
        timeout_s: float | None,
        progress: Progress | None,
        options: RequestOptions,
    ) -> Encoding:
        job = self._jobs.of_list(form, sequences, timeout_s, progress, options)
        chunks = await self._run(job.plan(sequences))
        gathering = Gathering(chunks, progress)
        async with aclosing(self._each(chunks, job.send, ordered=True)) as parts:
            async for part in parts:
                gathering.add(part)
        return gathering.result()

    async def _stream(
        self, job: Job, sequences: Iterable[Any] | AsyncIterable[Any], ordered: bool
    ) -> AsyncGenerator[SequenceEncoding, None]:
        cutter = job.cutter(await self._run(job.limits()))
        # A plain iterable lets nothing be sent while it is read: how long that takes does not matter.
        chunks = (
            _cut_as_read(cutter, sequences) if isinstance(sequences, AsyncIterable) else _chunks.cut(cutter, sequences)
        )
        async with aclosing(self._each(chunks, job.send_apart, ordered=ordered)) as parts:
            async for part in parts:
                for one in part:
                    yield one

    async def _each(
        self,
        chunks: Iterable[Chunk] | AsyncIterable[Chunk],
        send: Callable[[Chunk], _core.Exchange[_Result]],
        *,
        ordered: bool,
    ) -> AsyncGenerator[_Result, None]:
        """Sends chunks, some at once, and yields their results: late, to keep the server busy, but for slow sources."""
        pending: list[asyncio.Task[_Result]] = []
        try:
            async for chunk in _each_of(chunks):
                pending.append(asyncio.create_task(self._run(send(chunk))))
                while len(pending) == self._jobs.in_flight or (
                    chunk.hurried and any(task.done() for task in next_of(pending, ordered))
                ):
                    yield await _next(pending, ordered)
            while pending:
                yield await _next(pending, ordered)
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)

    async def _run(self, exchange: _core.Exchange[_Result]) -> _Result:
        """Takes the steps of an exchange until its result is there."""
        outcome: bytes | HeadwaiterError | None = None
        try:
            while True:
                step = exchange.throw(outcome) if isinstance(outcome, HeadwaiterError) else exchange.send(outcome)
                outcome = await self._take(step)
        except StopIteration as end:
            result: _Result = end.value
            return result

    async def _take(self, step: _core.Call | _core.Pause) -> bytes | HeadwaiterError:
        if isinstance(step, _core.Pause):
            await asyncio.sleep(step.pause_s)
            return b""
        try:
            return await self._transport.unary(step.method, step.request, step.timeout_s, step.request_id)
        except HeadwaiterError as error:
            return error


async def _next(pending: list[asyncio.Task[_Result]], ordered: bool) -> _Result:
    candidates = next_of(pending, ordered)
    await asyncio.wait(candidates, return_when=asyncio.FIRST_COMPLETED)
    task = next(task for task in candidates if task.done())
    # Only then, so that it is cancelled with the others where this task is.
    result = await task
    pending.remove(task)
    return result


async def _cut_as_read(cutter: Cutter, sequences: AsyncIterable[Any]) -> AsyncIterator[Chunk]:
    """Yields the chunks of all that a source gives; see `_chunks.cut_as_read`."""
    asked_s = time.monotonic()
    async for sequence in sequences:
        for chunk in cutter.add(sequence, time.monotonic() - asked_s):
            yield chunk
        asked_s = time.monotonic()
    for chunk in cutter.end():
        yield chunk


async def _each_of(items: Iterable[_Item] | AsyncIterable[_Item]) -> AsyncIterator[_Item]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item
