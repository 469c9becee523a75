"""Finds the kernel that ONNX Runtime uses for attention: flash, memory-efficient, fused or unfused.

As a program, this module runs batches of zeros while ONNX Runtime prints the kernel of each attention operator.
"""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np

from headwaiter_server.runtime.graph import EncoderGraph, Provider
from headwaiter_server.runtime.packing import pack

# ONNX Runtime reads this variable at process start, and then prints a line for each attention operator that runs.
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
# Line that the program prints before each batch.
_BATCH = "batch of sequences of "
SEQUENCES = 8
_TIMEOUT_S = 120.0


def attention_routes(graph: Path, provider: Provider, lengths: Sequence[int]) -> dict[int, str]:
    """For each length, return the operator and kernel of attention over eight sequences; the graph must take ids.

    Raises:
        RuntimeError: a batch failed.
    """
    program = [sys.executable, "-m", __name__, str(graph), provider, *map(str, lengths)]
    env = {**os.environ, _VARIABLE: "1"}
    process = subprocess.run(
        program, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_TIMEOUT_S, check=False
    )
    if process.returncode:
        raise RuntimeError(f"exit status {process.returncode}, {' '.join(process.stdout.split()[-30:])}")
    return read_routes(process.stdout)


def read_routes(printed: str) -> dict[int, str]:
    """Parse the printed lines into a text for each length, such as "PackedMultiHeadAttention: flash"."""
    routes = {}
    for batch in printed.split(_BATCH)[1:]:
        tokens, _, lines = batch.partition("\n")
        kernels = {
            f"{found['operator']}: {_ROUTES.get(found['kernel'], found['kernel'])}"
            for found in _PRINTED.finditer(lines)
        }
        routes[int(tokens)] = ", ".join(sorted(kernels)) or "no operator printed its kernel"
    return routes


def main() -> None:
    """Run the batches."""
    path, provider, *lengths = sys.argv[1:]
    graph = EncoderGraph.open(Path(path), cast("Provider", provider))
    for tokens in map(int, lengths):
        print(f"{_BATCH}{tokens}", flush=True)
        # One sequence is shorter, so that the batch has padding.
        batch = [np.zeros(length, np.int64) for length in [tokens] * (SEQUENCES - 1) + [tokens - 1]]
        graph.run(pack(batch), hidden=False)


if __name__ == "__main__":
    main()
