"""Answer the requests of a stream, each as soon as its answer is ready.

A caller that reads slowly delays only its own stream. gRPC accepts an answer only when the caller has room for the
answer; until then the request counts against the limits of the stream. At these limits the server stops reading, and
gRPC's flow control then stops the caller from sending.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import grpc

from headwaiter_proto.rules.errors import DeadlineExceeded, HeadwaiterError, InvalidInput, Unavailable
from headwaiter_server.metrics.recorder import Recorder
from headwaiter_server.requests.call import Call, OutcomeRecorder, clock
from headwaiter_server.requests.request_path import ReserveBytes
from headwaiter_server.rpc.aio_memory import read_message
from headwaiter_server.rpc.endpoint import DELIVERY_S, Context

_Request = TypeVar("_Request")


class StreamProtocol(Protocol[_Request]):
    """The messages of a stream in one protocol.

    Attributes:
        in_order: whether answers are sent in the order of the requests; otherwise each one is sent when it is ready.
        unique_ids: whether each request needs an id that no other unanswered request of the stream has.
    """

    in_order: bool
    unique_ids: bool

    async def parse(self, raw: bytes, call: Call) -> _Request:
        """Return a request; the errors of its broken texts go into the call.

        Raises:
            InvalidInput: the message is not a request.
        """
        ...

    def id_of(self, request: _Request) -> str:
        """Return the id of a request.

        Raises:
            InvalidInput: the id is malformed.
        """
        ...

    async def answer(self, request: _Request, call: Call, reserve: ReserveBytes) -> bytes:
        """Return the serialised answer to a request; call `reserve` with its size before the answer is computed."""
        ...

    def failure(self, request: _Request, call: Call, error: HeadwaiterError) -> bytes:
        """Return the serialised answer to a request that failed.

        Raises:
            HeadwaiterError: the error ends the stream.
        """
        ...


@dataclass(frozen=True)
class StreamLimits:
    """The limits of one stream.

    Attributes:
        requests: number of requests whose answers gRPC has not accepted.
        bytes_: total size of these requests, and also of their answers; a single request or answer may exceed it.
        idle_s: seconds without a request or an answer after which the stream ends; 0 for no limit.
    """

    requests: int
    bytes_: int
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


class _Position:
    """The position of a request in a stream whose answers have the order of the requests.

    Answers also reserve their bytes in this order; otherwise later answers could hold all bytes while they wait for an
    earlier answer.
    """

    def __init__(self, *, over: bool = False) -> None:
        self.reserved, self.written = asyncio.Event(), asyncio.Event()
        if over:
            self.end()

    def end(self) -> None:
        """Let the next request go on."""
        self.reserved.set()
        self.written.set()


class RequestStream(Generic[_Request]):
    """One call with a stream of requests and a stream of answers."""

    def __init__(
        self,
        context: Context,
        call: Call,
        protocol: StreamProtocol[_Request],
        recorder: Recorder,
        limits: StreamLimits,
    ) -> None:
        self._context = context
        self._call = call
        self._protocol = protocol
        self._recorder = recorder
        self._requests = Quota(limits.requests)
        self._request_bytes = Quota(limits.bytes_)
        self._answer_bytes = Quota(limits.bytes_)
        # Ids of the requests whose answers are not written yet.
        self._ids: set[str] = set()
        self._answer_tasks: set[asyncio.Task[None]] = set()
        self._write_lock = asyncio.Lock()
        self._latest_position = _Position(over=True)
        self._idle_s = limits.idle_s or float("inf")
        # The latest time, on `clock`, at which a request was read or answered.
        self._active_s = clock()
        self._draining = asyncio.get_running_loop().create_future()
        # The error of a request that ends the stream.
        self._failed: asyncio.Future[HeadwaiterError] = asyncio.get_running_loop().create_future()

    async def serve(self) -> None:
        """Answer every request until the caller sends no more, or no further request can be read.

        Raises:
            InvalidInput: the id of a request is missing, malformed or in use, so it cannot identify the answer.
            Unavailable: the server is draining, or the stream was idle for too long.
            HeadwaiterError: the error of a request that ends the stream.
        """
        reading = asyncio.create_task(self._read())
        idle = asyncio.create_task(self._wait_until_idle())
        try:
            ends: set[asyncio.Future[Any]] = {reading, idle, self._draining, self._failed}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            reading.cancel()
            ends = {asyncio.gather(reading, *self._answer_tasks, return_exceptions=True), self._failed}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (reading, idle, *self._answer_tasks):
                task.cancel()
        if self._failed.done():
            raise self._failed.result()
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
        while (raw := await read_message(self._context)) is not grpc.aio.EOF:
            self._active_s = clock()
            stream_call = self._call
            call = Call(
                stream_call.method,
                self._active_s,
                stream_call.deadline_s,
                stream_call.connection,
                stream_call.device_failures,
                stream_call.tenant,
                stream_call.traceparent,
            )
            request = await self._protocol.parse(raw, call)
            self._claim_id(request, call)
            await self._requests.acquire(1)
            await self._request_bytes.acquire(len(raw))
            # The tokenize stage does not include the wait for these two quotas.
            call.started_s = clock()
            before = self._latest_position if self._protocol.in_order else _Position(over=True)
            self._latest_position = _Position()
            task = asyncio.create_task(self._answer(request, call, len(raw), before, self._latest_position))
            self._answer_tasks.add(task)
            task.add_done_callback(self._answer_tasks.discard)

    async def _answer(
        self, request: _Request, call: Call, request_bytes: int, before: _Position, position: _Position
    ) -> None:
        """Answer a request, and release its quotas once gRPC has accepted the answer."""
        reserved_bytes = 0

        async def reserve(size_bytes: int) -> None:
            nonlocal reserved_bytes
            await before.reserved.wait()
            await self._answer_bytes.acquire(size_bytes)
            reserved_bytes += size_bytes
            position.reserved.set()

        try:
            message = await self._response(request, call, reserve)
            await before.written.wait()
            async with self._write_lock:
                # Free the id now: the caller may receive the answer and reuse the id before `write` returns.
                self._ids.discard(call.request_id)
                # A write fails if the caller has gone. gRPC then cancels the whole stream.
                with suppress(grpc.aio.BaseError):
                    async with asyncio.timeout(DELIVERY_S):
                        await self._context.write(message)
        except TimeoutError:
            late = DeadlineExceeded(f"the caller did not take an answer within {DELIVERY_S:g} s: read the answers")
            if not self._failed.done():
                self._failed.set_result(late)
        except HeadwaiterError as error:
            if not self._failed.done():
                self._failed.set_result(error)
        finally:
            self._active_s = clock()
            position.end()
            call.held.close()
            self._answer_bytes.release(reserved_bytes)
            self._request_bytes.release(request_bytes)
            self._requests.release(1)

    def _claim_id(self, request: _Request, call: Call) -> None:
        """Adopt the id of a request; if ids must be unique, reserve the id until the answer is written.

        Raises:
            InvalidInput: the id is malformed; or ids must be unique, and the id is missing or in use on this stream.
        """
        request_id = self._protocol.id_of(request)
        if self._protocol.unique_ids:
            if not request_id:
                raise InvalidInput(
                    "request_id is empty: give each request of a stream an id, which its answer will carry",
                    field="request_id",
                )
            if request_id in self._ids:
                raise InvalidInput(
                    f"request_id {request_id!r} already has an unanswered request on this stream: wait for its answer, "
                    "or use another id",
                    field="request_id",
                )
            self._ids.add(request_id)
        call.request_id = request_id or call.request_id

    async def _response(self, request: _Request, call: Call, reserve: ReserveBytes) -> bytes:
        """Return the serialised answer to a request.

        Raises:
            HeadwaiterError: the request failed, and its error ends the stream.
        """
        try:
            with OutcomeRecorder(call, self._recorder):
                return await self._protocol.answer(request, call, reserve)
        except HeadwaiterError as error:
            return self._protocol.failure(request, call, error)
