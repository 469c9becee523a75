"""The latency of one requester, in parts: why the server adds more to session.run than a minimal server does.

Run it with `python -m bench.studies.one_requester`. It sends the same sequences, one after another, to an echo server,
a minimal server, Headwaiter with a null model, and Headwaiter with all-MiniLM-L6-v2, in turns, and prints medians. With
the null model, the code of each stage stays in the processor's caches; the real model evicts the code in each call.
"""

import time
from collections.abc import Sequence
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from bench.loads.raw_calls import ENCODE, request
from bench.loads.traces import MEDIAN_30, Ids
from bench.measure import HEADWAITER, MINIMAL, Fleet
from bench.processes import LOAD_CORE, SERVER_CORE, pin
from bench.studies.ceiling import alone_s
from bench.studies.front_end import NULL
from bench.studies.throughput import PACKED
from headwaiter_proto import encoder_pb2 as pb
from testbed.minilm import bundle

_SEQUENCES = 90
_ROUNDS = 12
_STAGES = ("tokenize_s", "queue_s", "assemble_s", "compute_s", "respond_s", "total_s")


def main() -> None:
    """Measure, and print the medians in milliseconds."""
    sequences = MEDIAN_30.trace(_SEQUENCES, vocabulary_size=30_000).sequences
    with Fleet() as fleet:
        targets = {
            "echo": (fleet[MINIMAL].address, "/echo/unary-1600"),
            "minimal server": (fleet[MINIMAL].address, ENCODE),
            "null model": (fleet[NULL].address, ENCODE),
            "all-MiniLM-L6-v2": (fleet[HEADWAITER].address, ENCODE),
        }
        rounds: dict[str, list[NDArray[np.float64]]] = {name: [] for name in targets}
        stages: dict[str, list[NDArray[np.float64]]] = {"null model": [], "all-MiniLM-L6-v2": []}
        bare = []
        for _ in range(_ROUNDS):
            pin(SERVER_CORE)
            bare.append(np.array(alone_s(sequences, bundle() / PACKED)))
            pin(LOAD_CORE)
            for name, target in targets.items():
                latencies_s, replies = _send(*target, sequences)
                rounds[name].append(latencies_s)
                if name in stages:
                    stages[name].append(_stages_s(replies))
    # The median of each sequence over the rounds, because a sequence has another length than the next one.
    run_s = np.median(bare, axis=0)
    print(f"session.run: {np.median(run_s) * 1e3:.2f} ms")
    for name, latencies in rounds.items():
        served_s = np.median(latencies, axis=0)
        print(
            f"{name}: {np.median(served_s) * 1e3:.2f} ms, above session.run {np.median(served_s - run_s) * 1e3:+.2f} ms"
        )
    for name, each in stages.items():
        medians = np.median(np.concatenate(each), axis=0) * 1e3
        print(name, ", ".join(f"{stage} {ms:.2f} ms" for stage, ms in zip(_STAGES, medians, strict=True)))


def _send(address: str, method: str, sequences: Sequence[Ids]) -> tuple[NDArray[np.float64], list[bytes]]:
    """Send one sequence after another; return the seconds and the reply of each."""
    latencies_s, replies = [], []
    with grpc.insecure_channel(address) as channel:
        call: Any = channel.unary_unary(method)
        for message in [request(ids).message for ids in sequences]:
            started_s = time.perf_counter()
            replies.append(call(message))
            latencies_s.append(time.perf_counter() - started_s)
    return np.array(latencies_s), replies


def _stages_s(replies: list[bytes]) -> NDArray[np.float64]:
    timings = [pb.EncodeResponse.FromString(reply).timings for reply in replies]
    return np.array([[getattr(each, stage) for stage in _STAGES] for each in timings])


if __name__ == "__main__":
    main()
