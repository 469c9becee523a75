"""One end of the socket between a front end and the engine: requests, and calls in both directions."""

import asyncio
import logging
import socket
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

from headwaiter_proto.rules.errors import HeadwaiterError, Overloaded, Unavailable
from headwaiter_server.processes.messages import (
    HEADER,
    Kind,
    missing_bytes,
    read_error,
    read_objects,
    read_vectors,
    split_messages,
    write_error,
    write_objects,
)

log = logging.getLogger(__name__)

# The methods that the other end may call, by name.
Methods = dict[str, Callable[..., Awaitable[Any]]]

# Messages leave in pieces of about this size. What has left cannot be withdrawn.
_WRITE_BYTES = 1 << 18
# While more than this is unsent, requests are refused: four of the largest messages that the default settings accept.
_MAX_UNSENT_BYTES = 64 << 20
# The delay is fixed, because a front end cannot predict when the engine reads again.
_RETRY_AFTER_S = 1.0


class Refused(Exception):
    """A request was refused before it was queued."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


class Link(asyncio.Protocol):
    """One end of the socket. Messages of one iteration of the event loop leave together.

    While the other process does not read, messages wait here. A call or a request that is cancelled meanwhile is
    dropped, so requests of callers that have gone take neither memory nor the other process's time.

    Args:
        other: names the other process in the log.
        methods: answer the calls of the other end, by name.
        on_request: takes the number and the payload of a request to encode.
        on_cancel: takes the number of a request that is no longer wanted.
        max_unread_bytes: what the other process may leave unread; then the socket is closed.

    Attributes:
        closed: resolves when the other process has gone, or `close` was called.
        heard_s: when the other process sent something last, on `time.monotonic`.
    """

    def __init__(
        self,
        other: str,
        methods: Methods,
        on_request: Callable[[int, bytes], None] = lambda *_: None,
        on_cancel: Callable[[int], None] = lambda _: None,
        max_unread_bytes: float = float("inf"),
    ) -> None:
        self._max_unread_bytes = max_unread_bytes
        self.heard_s = time.monotonic()
        self.other = other
        self._methods, self._on_request, self._on_cancel = methods, on_request, on_cancel
        self._numbers = count()
        # Calls and requests to the other end, and running calls of the other end.
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._answering: dict[int, asyncio.Task[None]] = {}
        # The parts of each unsent message, in order; the keys allow to withdraw one.
        self._outgoing: OrderedDict[int, list[Any]] = OrderedDict()
        self._keys = count()
        self._unsent_bytes = 0
        self._flushes = self._paused = False
        # The pieces of an incomplete message, and the least number of bytes that it still lacks.
        self._received: list[bytes] = []
        self._missing_bytes = 0
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self._loop.create_future()

    async def open(self, end: socket.socket) -> None:
        """Use one end of a pair of sockets."""
        await self._loop.create_unix_connection(lambda: self, sock=end)

    def close(self) -> None:
        """Close the socket, without sending what is left."""
        if self._transport is not None:
            self._transport.abort()

    def send(self, kind: Kind, number: int, parts: list[Any]) -> int:
        """Send a message, and return its key; a message to a process that has gone is lost."""
        if not self._flushes:
            self._flushes = True
            self._loop.call_soon(self._flush)
        size_bytes = sum([memoryview(part).nbytes for part in parts])
        if self._paused:
            # Rows are views. A message that waits would keep the outputs of its whole batch in memory.
            parts = [b"".join(parts)]
        key = next(self._keys)
        self._outgoing[key] = [HEADER.pack(size_bytes, kind, number), *parts]
        self._unsent_bytes += HEADER.size + size_bytes
        return key

    def notify(self, method: str, *arguments: Any) -> None:
        """Call a method of the other end whose answer does not matter."""
        self.send(Kind.CALL, next(self._numbers), write_objects(method, *arguments))

    async def call(self, method: str, *arguments: Any) -> Any:
        """Return what a method of the other end returns, or raise its error; a cancellation cancels the method.

        Raises:
            Unavailable: the other process has gone.
        """
        return await self.ask(Kind.CALL, write_objects(method, *arguments))

    async def ask(self, kind: Kind, parts: list[Any]) -> Any:
        """Return the answer to a call or a request.

        Raises:
            Refused: the request was refused before it was queued, by the other process or because too much is unsent.
            Unavailable: the other process has gone.
        """
        if self.closed.done():
            raise _gone()
        if kind is Kind.REQUEST and self._unsent_bytes > _MAX_UNSENT_BYTES:
            raise Refused(_busy(self.other, self._unsent_bytes))
        number = next(self._numbers)
        answer = self._waiting[number] = self._loop.create_future()
        key = self.send(kind, number, parts)
        try:
            return await answer
        except asyncio.CancelledError:
            if key in self._outgoing:
                self._take(key)
            else:
                self.send(Kind.CANCEL, number, [])
            raise
        finally:
            self._waiting.pop(number, None)
            # The traceback of an error in `answer` refers to this frame, and the frame to the parts of a request.
            del answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the transport of the socket."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Handle all complete messages."""
        self.heard_s = time.monotonic()
        self._received.append(data)
        self._missing_bytes -= len(data)
        if self._missing_bytes > 0:
            # A message of 100 MB arrives in hundreds of pieces: joining them at each piece would copy gigabytes.
            return
        messages, left = split_messages(b"".join(self._received))
        self._received, self._missing_bytes = [left] if left else [], missing_bytes(left)
        for kind, number, payload in messages:
            self._handle(kind, number, payload)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail what waits, and stop what answers."""
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(_gone())
        for task in self._answering.values():
            task.cancel()
        if not self.closed.done():
            self.closed.set_result(None)

    def pause_writing(self) -> None:
        """Keep messages here, because the other process does not read."""
        self._paused = True

    def resume_writing(self) -> None:
        """Send what waits."""
        self._paused = False
        self._flush()

    def _flush(self) -> None:
        self._flushes = False
        transport = self._transport
        if transport is None or transport.is_closing():
            self._outgoing.clear()
            self._unsent_bytes = 0
            return
        while self._outgoing and not self._paused:
            until_bytes = self._unsent_bytes - _WRITE_BYTES
            parts: list[Any] = []
            while self._outgoing and self._unsent_bytes > until_bytes:
                parts += self._take(next(iter(self._outgoing)))
            transport.write(b"".join(parts))
        if (unread_bytes := self._unsent_bytes + transport.get_write_buffer_size()) > self._max_unread_bytes:
            log.error("%s has left %d bytes unread, and is cut off", self.other, unread_bytes)
            transport.abort()

    def _take(self, key: int) -> list[Any]:
        """Remove an unsent message, and return its parts."""
        parts = self._outgoing.pop(key)
        self._unsent_bytes -= sum([memoryview(part).nbytes for part in parts])
        return parts

    def _handle(self, kind: Kind, number: int, payload: bytes) -> None:
        if kind is Kind.REQUEST:
            self._on_request(number, payload)
        elif kind is Kind.CALL:
            task = self._answering[number] = self._loop.create_task(self._answer(number, payload))
            # Not in the task itself, which never runs if it is cancelled before its first step.
            task.add_done_callback(lambda _: self._answering.pop(number))
        elif kind is Kind.CANCEL:
            if answering := self._answering.get(number):
                answering.cancel()
            else:
                self._on_cancel(number)
        elif (answer := self._waiting.get(number)) is not None and not answer.done():
            if kind is Kind.VECTORS:
                answer.set_result(read_vectors(payload))
            elif kind is Kind.RETURNED:
                answer.set_result(read_objects(payload)[0])
            else:
                error = read_error(payload)
                answer.set_exception(Refused(error) if kind is Kind.REFUSED else error)

    async def _answer(self, number: int, payload: bytes) -> None:
        try:
            method, *arguments = read_objects(payload)
            self.send(Kind.RETURNED, number, write_objects(await self._methods[method](*arguments)))
        except asyncio.CancelledError:
            raise
        except Refused as refused:
            self.send(Kind.REFUSED, number, write_error(refused.error))
        except HeadwaiterError as error:
            self.send(Kind.RAISED, number, write_error(error))
        except Exception as error:
            log.exception("a call of %s failed", self.other)
            self.send(Kind.RAISED, number, write_error(HeadwaiterError(f"a call between processes failed: {error}")))


def _busy(other: str, unsent_bytes: int) -> Overloaded:
    return Overloaded(
        f"{unsent_bytes} bytes of requests wait until {other} reads them; new ones are refused above "
        f"{_MAX_UNSENT_BYTES} bytes: try again in {_RETRY_AFTER_S:g} s",
        retry_after_s=_RETRY_AFTER_S,
    )


def _gone() -> Unavailable:
    return Unavailable("a process of the server has ended: send the request again, or to another replica")
