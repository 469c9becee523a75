"""Bound the memory of messages that gRPC is receiving and has not delivered yet."""

import asyncio
from dataclasses import dataclass
from typing import Any

import grpc

from headwaiter_proto.rules.errors import InvalidInput, Overloaded
from headwaiter_server.concurrency.stragglers import Stragglers
from headwaiter_server.requests.shares import RETRY_AFTER_S, Shares
from headwaiter_server.rpc.aio_memory import read_message

# A message that is not complete after this time is slow. Small messages are complete at once.
_SLOW_S = 0.05
# A slow message that is not complete after this time is dropped.
_LONGEST_S = 30.0
# The memory of slow messages, if each one is nearly complete.
_SLOW_BYTES = 64 << 20
_LEAST_SLOW = 8


@dataclass(eq=False, slots=True)
class _Reading:
    """A message that is being received.

    Attributes:
        task: waits for the message.
        slow: whether the message counts as slow.
        dropped: whether the message took too long, and its task was cancelled.
    """

    connection: str
    task: "asyncio.Task[Any]"
    slow: bool = False
    dropped: bool = False

    def drop(self) -> None:
        """Wait no longer. The call then ends, and with the call gRPC's own reading."""
        self.dropped = self.task.cancel()


class IncomingMessages:
    """Reads the message of a call, and drops messages that arrive too slowly.

    gRPC reads at most 64 KiB of a call's message before the server asks for the message. Then gRPC gives the caller
    leave to send all of it, and keeps it until it is complete: a caller that stops just before the end of many messages
    would hold memory for ever. The server therefore lets few messages be slow, and divides them among connections.
    """

    def __init__(self, max_message_bytes: int) -> None:
        """Read messages of at most `max_message_bytes`, which gRPC enforces."""
        self._most_slow = max(_LEAST_SLOW, _SLOW_BYTES // max_message_bytes)
        self._slow = Shares(self._most_slow)
        self._reading = Stragglers[_Reading](_SLOW_S, self._note_slow)
        self._slow_reading = Stragglers[_Reading](_LONGEST_S, _Reading.drop)

    async def read(self, context: Any, connection: str) -> bytes:
        """Return the first message of a call.

        Raises:
            InvalidInput: the call has no message.
            Overloaded: the message arrives too slowly while others do too, or takes longer than 30 s.
        """
        task = asyncio.current_task()
        assert task is not None
        reading = _Reading(connection, task)
        self._reading.add(reading)
        try:
            raw = await read_message(context)
        except asyncio.CancelledError:
            # gRPC may have cancelled the task too, because the caller has gone.
            if not reading.dropped or task.uncancel():
                raise
            raise Overloaded(
                f"the message was not complete in time; the server waits {_LONGEST_S:g} s for at most "
                f"{self._most_slow} messages that arrive slowly, and divides them among connections: send the message "
                f"faster, or try again in {RETRY_AFTER_S:g} s",
                retry_after_s=RETRY_AFTER_S,
                limit=self._most_slow,
            ) from None
        finally:
            self._end(reading)
        if raw is grpc.aio.EOF:
            raise InvalidInput("the call ended without a message: send one message")
        message: bytes = raw
        return message

    def _note_slow(self, reading: _Reading) -> None:
        if self._slow.fits(reading.connection, 1):
            reading.slow = True
            self._slow.take(reading.connection, 1)
            self._slow_reading.add(reading)
        else:
            reading.drop()

    def _end(self, reading: _Reading) -> None:
        self._reading.discard(reading)
        if reading.slow:
            self._slow_reading.discard(reading)
            self._slow.give_back(reading.connection, 1)
