"""A stream of requests, each answered as soon as it is ready, and read no faster than the answers are.

A caller that reads slowly stalls only itself: gRPC does not take an answer for which the caller has no room, an answer
that is not taken keeps its request's place, and without a place nothing more is read of the stream. gRPC's own flow
control then stops the caller from sending.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import grpc

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_server.errors import HeadwaiterError, InvalidInput, Unavailable
from headwaiter_server.metrics import Recorder
from headwaiter_server.rpc import requests
from headwaiter_server.rpc.endpoint import Call, Context, Observed, clock
from headwaiter_server.rpc.status import stream_error

# Waits until so many bytes of an answer may be held.
MakeRoom = Callable[[int], Awaitable[None]]
# Returns a serialised EncodeResponse.
Encode = Callable[[pb.EncodeRequest, Call, MakeRoom], Awaitable[bytes]]

_LENGTH_DELIMITED = 2


@dataclass(frozen=True)
class StreamLimits:
    """What one stream may hold.

    Attributes:
        requests: that were read and have no answer on its way.
        bytes_: of those requests, and as many of their answers; one alone may have more.
    """

    requests: int
    bytes_: int


class Bound:
    """So much of something may be held at a time.

    Args:
        most: how much; more is allowed to one that holds it alone.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = 0
        # First come, first served: what is large would else wait for as long as there is something small.
        self._turn = asyncio.Lock()
        self._given = asyncio.Event()

    async def take(self, amount: int) -> None:
        """Hold so much, as soon as there is room."""
        async with self._turn:
            while self._held and self._held + amount > self._most:
                self._given.clear()
                await self._given.wait()
            self._held += amount

    def give(self, amount: int) -> None:
        """Hold so much no longer."""
        self._held -= amount
        self._given.set()


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
        self._places = Bound(limits.requests)
        self._request_bytes = Bound(limits.bytes_)
        self._answer_bytes = Bound(limits.bytes_)
        # Of the requests whose answer is not yet on its way.
        self._ids: set[str] = set()
        self._answering: set[asyncio.Task[None]] = set()
        self._writing = asyncio.Lock()
        self._draining = asyncio.get_running_loop().create_future()

    async def serve(self) -> None:
        """Answer every request, until no more come, or none can be read any more.

        Raises:
            InvalidInput: a request came whose answer could not be told from others.
            Unavailable: the server is draining.
        """
        reading = asyncio.create_task(self._read())
        try:
            await asyncio.wait({reading, self._draining}, return_when=asyncio.FIRST_COMPLETED)
            reading.cancel()
            await asyncio.wait({reading, *self._answering})
        finally:
            for task in (reading, *self._answering):
                task.cancel()
        if reading.cancelled():
            raise Unavailable("the server is shutting down: send what has no answer to another replica")
        reading.result()

    def drain(self) -> None:
        """Read no further, and end when what was read has its answer."""
        if not self._draining.done():
            self._draining.set_result(None)

    async def _read(self) -> None:
        async for raw in self._messages:
            call = Call(self._call.method, clock(), self._call.deadline_s)
            request = requests.parse(raw, pb.EncodeRequest())
            call.request_id = self._claim(request.request_id)
            await self._places.take(1)
            await self._request_bytes.take(len(raw))
            task = asyncio.create_task(self._answer(request, call, len(raw)))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

    async def _answer(self, request: pb.EncodeRequest, call: Call, request_bytes: int) -> None:
        """Answer a request, and let go of what it holds when the answer is on its way."""
        held_bytes = 0

        async def make_room(size_bytes: int) -> None:
            nonlocal held_bytes
            await self._answer_bytes.take(size_bytes)
            held_bytes += size_bytes

        try:
            outcome = await self._outcome(request, call, make_room)
            async with self._writing:
                # Whoever has the answer may use the id again.
                self._ids.remove(call.request_id)
                # A caller that has gone is no failure: gRPC cancels the stream.
                with suppress(grpc.aio.BaseError):
                    await self._context.write(outcome)
        finally:
            self._answer_bytes.give(held_bytes)
            self._request_bytes.give(request_bytes)
            self._places.give(1)

    def _claim(self, request_id: str) -> str:
        """Note that a request is in flight.

        Raises:
            InvalidInput: its answer could not be told from others.
        """
        requests.check_id(request_id)
        if not request_id:
            raise InvalidInput(
                "request_id: a request of a stream needs one, by which to know its answer", field="request_id"
            )
        if request_id in self._ids:
            raise InvalidInput(
                f"request_id: {request_id!r} is in flight on this stream already: wait for its answer, or take another",
                field="request_id",
            )
        self._ids.add(request_id)
        return request_id

    async def _outcome(self, request: pb.EncodeRequest, call: Call, make_room: MakeRoom) -> bytes:
        """Return a serialised EncodeStreamResponse."""
        try:
            with Observed(call, self._recorder):
                response = await self._encode(request, call, make_room)
        except HeadwaiterError as failure:
            return pb.EncodeStreamResponse(request_id=call.request_id, error=stream_error(failure)).SerializeToString()
        head = pb.EncodeStreamResponse(request_id=call.request_id).SerializeToString()
        return b"".join((head, _field_head(pb.EncodeStreamResponse.RESPONSE_FIELD_NUMBER, len(response)), response))


def _field_head(number: int, length: int) -> bytes:
    """Return what stands before a message of so many bytes inside another one, in protobuf's wire format."""
    head = [number << 3 | _LENGTH_DELIMITED]
    while length > 0x7F:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([*head, length])
