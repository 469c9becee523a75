"""Messages that arrive too slowly are dropped, and gRPC ends its own reading."""

import asyncio
from unittest.mock import patch

import pytest

from headwaiter_proto.rules.errors import Overloaded
from headwaiter_server.rpc import incoming
from headwaiter_server.rpc.incoming import IncomingMessages


class _SlowCall:
    """A call whose message arrives when the test says so."""

    def __init__(self) -> None:
        self.arrived = asyncio.Event()
        self.read_ended = asyncio.Event()

    async def read(self) -> bytes:
        await self.arrived.wait()
        self.read_ended.set()
        return b"message"


async def test_a_dropped_message_that_arrives_later_still_reaches_grpcs_reading() -> None:
    # gRPC never frees a message if the task that reads the message was cancelled.
    call = _SlowCall()
    with (
        patch.object(incoming, "_SLOW_S", 0.001),
        patch.object(incoming, "_LONGEST_S", 0.001),
        pytest.raises(Overloaded),
    ):
        await IncomingMessages(1 << 20).read(call, "connection")
    assert not call.read_ended.is_set()
    call.arrived.set()
    await asyncio.wait_for(call.read_ended.wait(), 10)
