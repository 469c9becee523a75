"""Sends a trace to a server, many sequences in a request and many requests at a time."""

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from bench.loads.raw_calls import ENCODE
from headwaiter_proto import encoder_pb2 as pb

Ids = NDArray[np.int64]

# So the server is never without work, and its batches are full.
_IN_A_REQUEST, _IN_FLIGHT = 64, 16


def send(address: str, sequences: Sequence[Ids]) -> None:
    """Send a trace and wait for all answers.

    Raises:
        grpc.aio.AioRpcError: a request failed.
    """
    starts = range(0, len(sequences), _IN_A_REQUEST)
    asyncio.run(_send(address, [message(sequences[start : start + _IN_A_REQUEST]) for start in starts]))


def message(sequences: Sequence[Ids]) -> bytes:
    """Return a request of some sequences."""
    tokens = pb.TokenSequences(
        dtype=pb.DATA_TYPE_INT32,
        data=np.concatenate(sequences).astype("<i4").tobytes(),
        lengths=list(map(len, sequences)),
    )
    return pb.EncodeRequest(tokens=tokens).SerializeToString()


async def _send(address: str, messages: Sequence[bytes]) -> None:
    coming = iter(messages)
    async with grpc.aio.insecure_channel(address) as channel:
        # Without serializers: bytes in, bytes out, as the client is not what is measured.
        encode: Any = channel.unary_unary(ENCODE)

        async def request_in_turn() -> None:
            for each in coming:
                await encode(each)

        await asyncio.gather(*(request_in_turn() for _ in range(_IN_FLIGHT)))
