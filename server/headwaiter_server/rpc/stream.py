"""Answer the requests of a stream, each as soon as its answer is ready.

A caller that reads slowly delays only its own stream. gRPC accepts an answer only when the caller has room for the
answer; until then the request counts against the limits of the stream. At these limits the server stops reading, and
gRPC's flow control then stops the caller from sending.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import grpc

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import HeadwaiterError, InvalidInput, Unavailable
from headwaiter_proto.rules.requests import check_id
from headwaiter_proto.rules.status import stream_error
from headwaiter_server.metrics import Recorder
from headwaiter_server.rpc.endpoint import Call, Context, OutcomeRecorder, clock
from headwaiter_server.rpc.parsing import parse_request

# Waits until the stream's limit leaves room for this number of bytes of an answer.
ReserveBytes = Callable[[int], Awaitable[None]]
# Returns a serialised EncodeResponse.
Encode = Callable[[pb.EncodeRequest, Call, ReserveBytes], Awaitable[bytes]]

_LENGTH_DELIMITED = 2


@dataclass(frozen=True)
class StreamLimits:
    """The most that one stream may hold.

    Attributes:
        requests: number of requests whose answers gRPC has not accepted.
        bytes_: total size of these requests, and separately of their answers; a single one may exceed the limit.
        sequences: number of sequences of one request.
        idle_s: seconds without a request or an answer after which the stream ends; 0 for no limit.
    """

    requests: int
    bytes_: int
    sequences: int = 4096
    idle_s: float = 0.0


class Quota:
    """Lets requests hold at most `limit` in total, first come, first served; one request alone may exceed the limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0
        # Without the lock, small amounts could overtake a large amount for ever.
        self._first_in_line = asyncio.Lock()
        self._released = asyncio.Event()

    async def acquire(self, amount: int) -> None:
        """Wait until the amount is available, and hold it."""
        async with self._first_in_line:
            while self._held and self._held + amount > self._limit:
                self._released.clear()
                await self._released.wait()
            self._held += amount

    def release(self, amount: int) -> None:
        """Give an amount back."""
        self._held -= amount
        self._released.set()


class EncodeStream:
    """One EncodeStream call."""

    def __init__(
        self,
        messages: AsyncIterator[bytes],
        context: Context,
        call: Call,
        encode: Encode,
        recorder: Recorder,
        limits: StreamLimits,
    ) -> None:
        self._messages = messages
        self._context = context
        self._call = call
        self._encode = encode
        self._recorder = recorder
        self._requests = Quota(limits.requests)
        self._request_bytes = Quota(limits.bytes_)
        self._answer_bytes = Quota(limits.bytes_)
        # Ids of the requests whose answers are not written yet.
        self._ids: set[str] = set()
        self._answer_tasks: set[asyncio.Task[None]] = set()
        self._write_lock = asyncio.Lock()
        self._max_sequences = limits.sequences
        self._idle_s = limits.idle_s or float("inf")
        # The latest time, on `clock`, at which a request was read or answered.
        self._active_s = clock()
        self._draining = asyncio.get_running_loop().create_future()

    async def serve(self) -> None:
        """Answer every request until the caller sends no more, or no further request can be read.

        Raises:
            InvalidInput: the id of a request is missing, malformed or in use, so it cannot identify the answer.
            Unavailable: the server is draining, or the stream was idle for too long.
        """
        reading = asyncio.create_task(self._read())
        idle = asyncio.create_task(self._wait_until_idle())
        try:
            await asyncio.wait({reading, idle, self._draining}, return_when=asyncio.FIRST_COMPLETED)
            reading.cancel()
            await asyncio.wait({reading, *self._answer_tasks})
        finally:
            for task in (reading, idle, *self._answer_tasks):
                task.cancel()
        if reading.cancelled() and idle.done():
            raise Unavailable(
                f"the stream had neither a request nor an answer for {self._idle_s:g} s: open a new stream"
            )
        if reading.cancelled():
            raise Unavailable("the server is shutting down: send the unanswered requests to another replica")
        reading.result()

    def drain(self) -> None:
        """Stop reading, and end once the requests that were read are answered."""
        if not self._draining.done():
            self._draining.set_result(None)

    async def _wait_until_idle(self) -> None:
        """Return once the stream has had neither a request nor an answer for the idle limit."""
        left_s = self._idle_s
        while left_s > 0:
            await asyncio.sleep(left_s)
            if self._answer_tasks:
                self._active_s = clock()
            left_s = self._active_s + self._idle_s - clock()

    async def _read(self) -> None:
        async for raw in self._messages:
            self._active_s = clock()
            stream_call = self._call
            call = Call(
                stream_call.method,
                self._active_s,
                stream_call.deadline_s,
                stream_call.connection,
                stream_call.device_failures,
            )
            request = await parse_request(raw, pb.EncodeRequest(), self._max_sequences)
            call.request_id = self._claim_id(request.request_id)
            await self._requests.acquire(1)
            await self._request_bytes.acquire(len(raw))
            # The wait for these two is no part of the tokenize stage.
            call.started_s = clock()
            task = asyncio.create_task(self._answer(request, call, len(raw)))
            self._answer_tasks.add(task)
            task.add_done_callback(self._answer_tasks.discard)

    async def _answer(self, request: pb.EncodeRequest, call: Call, request_bytes: int) -> None:
        """Answer a request, and release its quotas once gRPC has accepted the answer."""
        reserved_bytes = 0

        async def reserve(size_bytes: int) -> None:
            nonlocal reserved_bytes
            await self._answer_bytes.acquire(size_bytes)
            reserved_bytes += size_bytes

        try:
            message = await self._response(request, call, reserve)
            async with self._write_lock:
                # Before the write: the answer may arrive, and the caller reuse the id, before `write` returns.
                self._ids.remove(call.request_id)
                # A write fails if the caller has gone. gRPC then cancels the whole stream.
                with suppress(grpc.aio.BaseError):
                    await self._context.write(message)
        finally:
            self._active_s = clock()
            call.held.close()
            self._answer_bytes.release(reserved_bytes)
            self._request_bytes.release(request_bytes)
            self._requests.release(1)

    def _claim_id(self, request_id: str) -> str:
        """Reserve the id of a request until its answer is written.

        Raises:
            InvalidInput: the id is missing, malformed, or in use on this stream.
        """
        check_id(request_id)
        if not request_id:
            raise InvalidInput(
                "request_id is empty: give each request of a stream an id, which its answer will carry",
                field="request_id",
            )
        if request_id in self._ids:
            raise InvalidInput(
                f"request_id {request_id!r} already has an unanswered request on this stream: wait for its answer, or "
                "use another id",
                field="request_id",
            )
        self._ids.add(request_id)
        return request_id

    async def _response(self, request: pb.EncodeRequest, call: Call, reserve: ReserveBytes) -> bytes:
        """Return a serialised EncodeStreamResponse."""
        try:
            with OutcomeRecorder(call, self._recorder):
                response = await self._encode(request, call, reserve)
        except HeadwaiterError as error:
            return pb.EncodeStreamResponse(request_id=call.request_id, error=stream_error(error)).SerializeToString()
        # Append the serialised response as a field, instead of parsing and copying it.
        head = pb.EncodeStreamResponse(request_id=call.request_id).SerializeToString()
        tag = _field_tag(pb.EncodeStreamResponse.RESPONSE_FIELD_NUMBER, len(response))
        return b"".join((head, tag, response))


def _field_tag(number: int, length: int) -> bytes:
    """Return the bytes before a field that holds a message of the given length, in protobuf's wire format."""
    tag = [number << 3 | _LENGTH_DELIMITED]
    while length > 0x7F:
        tag.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([*tag, length])
