"""The CPU time of one call of `Client.encode`, against the same call with the generated stub.

Run it with `python -m bench.studies.call_cost ADDRESS` against a server that runs in another process. It prints as JSON
the microseconds of CPU time per call, of the client and of the stub, for one text and for 64 texts.
"""

import json
import sys
from collections.abc import Callable, Sequence
from statistics import median

import grpc
import numpy as np

from bench.processes import in_turn, own_cpu_s
from headwaiter_client import Client
from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.encoder_pb2_grpc import EncoderStub

_TEXTS = (1, 64)
_CALLS, _PAIRS = 300, 10


def main() -> None:
    """Measure, and print the figures."""
    print(json.dumps({str(texts): cost_us(sys.argv[1], texts) for texts in _TEXTS}))


def cost_us(address: str, texts: int) -> dict[str, float]:
    """Return the CPU microseconds per call of the client and of the stub, the medians of runs in turn."""
    sentences = [f"the bread number {number} is fresh" for number in range(texts)]
    with Client(address) as client, grpc.insecure_channel(address) as channel:
        stub = EncoderStub(channel)  # type: ignore[no-untyped-call]
        runs = in_turn(
            lambda: _run_us(lambda: client.encode(sentences).pooled),
            lambda: _run_us(lambda: _encode_with_stub(stub, sentences)),
            _PAIRS,
        )
    client_us, stub_us = (median(run[1:]) for run in runs)  # The first runs connect and warm up.
    return {"client_us": client_us, "stub_us": stub_us, "ratio": client_us / stub_us}


def _run_us(call: Callable[[], object]) -> float:
    def run() -> None:
        for _ in range(_CALLS):
            call()

    return own_cpu_s(run) / _CALLS * 1e6


def _encode_with_stub(stub: EncoderStub, texts: Sequence[str]) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Return the vectors of texts as a program without the client would ask for them."""
    reply = stub.Encode(pb.EncodeRequest(texts=pb.Texts(values=texts)), timeout=30.0)
    return np.frombuffer(reply.pooled.data, "<f4").reshape(tuple(reply.pooled.shape))


if __name__ == "__main__":
    main()
