"""Which way attention goes through ONNX Runtime: flash, memory-efficient, fused or unfused.

Run as a program it encodes batches of made-up sequences, while ONNX Runtime says what each attention operator does.
"""

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from headwaiter_server.runtime.graph import EncoderGraph, Provider
from headwaiter_server.runtime.packing import pack

# What ONNX Runtime prints of each attention operator that it runs, if this variable says so when the process starts.
_VARIABLE = "ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO"
_PRINTED = re.compile(r"Operator=(?P<operator>\w+).*?SdpaKernel=(?P<kernel>\w+)")
_ROUTES = {
    "FLASH_ATTENTION": "flash",
    "CUDNN_FLASH_ATTENTION": "cuDNN's flash",
    "EFFICIENT_ATTENTION": "memory-efficient",
    "TRT_FUSED_ATTENTION": "fused",
    "TRT_FLASH_ATTENTION": "fused (flash)",
    "TRT_CROSS_ATTENTION": "fused (cross)",
    "MATH": "unfused",
}
# The program's own line before each batch.
_BATCH = "batch of sequences of "
SEQUENCES = 8
_TIME_S = 120.0


def attention_routes(graph: Path, provider: Provider, lengths: Sequence[int]) -> dict[int, str]:
    """Return the routes that eight sequences take, by their length, in words; a graph of token ids is run.

    Raises:
        RuntimeError: a batch could not be run.
    """
    program = [sys.executable, "-m", __name__, str(graph), provider, *map(str, lengths)]
    environment = {**os.environ, _VARIABLE: "1"}
    done = subprocess.run(
        program,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_TIME_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"exit status {done.returncode}, {' '.join(done.stdout.split()[-30:])}")
    return read_routes(done.stdout)


def read_routes(printed: str) -> dict[int, str]:
    """Return what was printed of attention, operator by operator, as "PackedMultiHeadAttention: flash"."""
    routes = {}
    for batch in printed.split(_BATCH)[1:]:
        tokens, _, lines = batch.partition("\n")
        seen = {
            f"{found['operator']}: {_ROUTES.get(found['kernel'], found['kernel'])}"
            for found in _PRINTED.finditer(lines)
        }
        routes[int(tokens)] = ", ".join(sorted(seen)) or "no operator says which"
    return routes


def main() -> None:
    """Run the batches."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graph", type=Path)
    parser.add_argument("provider", choices=("cuda", "cpu"))
    parser.add_argument("lengths", type=int, nargs="+")
    arguments = parser.parse_args()
    graph = EncoderGraph.open(arguments.graph, arguments.provider)
    for tokens in arguments.lengths:
        print(f"{_BATCH}{tokens}", flush=True)
        # One of them is shorter, so that there is something to leave out.
        graph.run(
            pack([np.zeros(length, np.int64) for length in [tokens] * (SEQUENCES - 1) + [tokens - 1]]), hidden=False
        )


if __name__ == "__main__":
    main()
