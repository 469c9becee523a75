"""Sends a trace to a server: many sequences in a request, and many concurrent requests."""

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from bench.loads.raw_calls import ENCODE
from headwaiter_proto import encoder_pb2 as pb

Ids = NDArray[np.int64]

# Enough for the server to always have work for full batches.
_SEQUENCES_PER_REQUEST, _CONCURRENT_REQUESTS = 64, 16


def send(address: str, sequences: Sequence[Ids]) -> None:
    """Send a trace and wait for all replies.

    Raises:
        grpc.aio.AioRpcError: a request failed.
    """
    starts = range(0, len(sequences), _SEQUENCES_PER_REQUEST)
    asyncio.run(_send(address, [_request(sequences[start : start + _SEQUENCES_PER_REQUEST]) for start in starts]))


def _request(sequences: Sequence[Ids]) -> bytes:
    data = np.concatenate(sequences).astype("<i4").tobytes()
    tokens = pb.TokenSequences(dtype=pb.DATA_TYPE_INT32, data=data, lengths=list(map(len, sequences)))
    return pb.EncodeRequest(tokens=tokens).SerializeToString()


async def _send(address: str, requests: Sequence[bytes]) -> None:
    waiting = iter(requests)
    async with grpc.aio.insecure_channel(address) as channel:
        # Without serializers, because the client is not measured.
        encode: Any = channel.unary_unary(ENCODE)

        async def send_until_done() -> None:
            for request in waiting:
                await encode(request)

        await asyncio.gather(*(send_until_done() for _ in range(_CONCURRENT_REQUESTS)))
