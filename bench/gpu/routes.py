"""Finds the kernel that ONNX Runtime uses for attention: flash, memory-efficient, fused or unfused."""

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from tempfile import TemporaryFile
from unittest.mock import patch

from bench.findings import Findings
from bench.gpu.settings import Precision
from headwaiter_export.config.choices import Mask, Positions
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.encoder.reference import random_sequences
from headwaiter_export.graphs.packed_cuda import bias_heads, needs_standard_operators
from headwaiter_server.runtime.attention_routes import (
    OLDEST_COMPUTE_CAPABILITY,
    PackedAttention,
    Route,
    is_always_fused,
    padded_attention,
    served_route,
)
from headwaiter_server.runtime.graph import EncoderGraph
from headwaiter_server.runtime.hardware import compute_capability
from headwaiter_server.runtime.packing import pack

# A session that opens while this variable is 1 prints a line for each attention operator that runs.
VARIABLE = "ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO"
_PRINTED = re.compile(r"SdpaKernel=(\w+)")
_ROUTES = {
    "FLASH_ATTENTION": "flash",
    "CUDNN_FLASH_ATTENTION": "cuDNN's flash",
    "EFFICIENT_ATTENTION": "memory-efficient",
    "TRT_FUSED_ATTENTION": "fused",
    "TRT_FLASH_ATTENTION": "fused (flash)",
    "TRT_CROSS_ATTENTION": "fused (cross)",
    "MATH": "unfused",
}
# Short, medium and long sequences, for which ONNX Runtime may choose different kernels.
_TOKENS = (32, 200, 512)
_SEQUENCES = 8


@contextmanager
def printed_kernels() -> Iterator[Callable[[], str]]:
    """Let sessions that open in the block print their kernels; yield a function that returns the newly printed lines.

    ONNX Runtime prints from C++, so the block redirects the standard output of the whole process.
    """
    sys.stdout.flush()
    stdout = os.dup(1)
    with TemporaryFile() as file, patch.dict(os.environ, {VARIABLE: "1"}):
        read_bytes = 0

        def printed() -> str:
            nonlocal read_bytes
            sys.stdout.flush()
            new = os.pread(file.fileno(), os.fstat(file.fileno()).st_size - read_bytes, read_bytes)
            read_bytes += len(new)
            return new.decode(errors="replace")

        try:
            os.dup2(file.fileno(), 1)
            yield printed
        finally:
            sys.stdout.flush()
            os.dup2(stdout, 1)
            os.close(stdout)


def read_routes(printed: str) -> str:
    """Return the attention kernels that the lines of a batch name; "gathered" if no line names a kernel."""
    kernels = {_ROUTES.get(kernel, kernel) for kernel in _PRINTED.findall(printed)}
    return ", ".join(sorted(kernels)) or "gathered"


def find_routes(
    label: str,
    graph: EncoderGraph,
    printed: Callable[[], str],
    config: EncoderConfig,
    precision: Precision,
    findings: Findings,
) -> None:
    """Run batches of short, medium and long sequences, and compare the routes of each batch with the prediction."""
    expected = routes_of_layers(config, precision, compute_capability(0) or OLDEST_COMPUTE_CAPABILITY)
    for tokens in sorted({min(max(n, config.min_tokens), config.max_tokens) for n in _TOKENS}):
        printed()  # The lines of earlier batches.
        # One sequence is shorter, so that the batch has padding.
        lengths = [tokens] * (_SEQUENCES - 1) + [max(tokens - 1, config.min_tokens)]
        graph.run(pack(random_sequences(config, lengths)), hidden=True)
        findings.expect(f"{label}: attention route, {_SEQUENCES} × {tokens} tokens", read_routes(printed()), expected)


def routes_of_layers(config: EncoderConfig, precision: Precision, capability: tuple[int, int]) -> str:
    """Return the kernels of all layers, like `read_routes`: local and global layers may have different kernels."""
    everywhere = config.mask is not Mask.NONE or config.distance_bias or config.positions is Positions.ALIBI
    biases = {everywhere or layer in config.local_layers for layer in range(config.layers)}
    if config.decoder is not None:
        biases |= {True, False}  # A decoder's attention to its own rows is causal, and that to the encoder is not.
    routes = set()
    for has_bias in biases:
        attention = padded_attention(
            half=precision == "fp16", head_dim=config.head_dim, value_dim=config.value_dim, attention_bias=has_bias
        )
        gathered = needs_standard_operators(config) or not is_always_fused(attention)
        routes.add(Route.GATHERED if gathered else served_route(attention, capability))
    return ", ".join(sorted(routes))


def packed_attention(config: EncoderConfig, precision: Precision) -> PackedAttention:
    """Return what the attention operators of a CUDA graph compute; `EncoderGraph` needs this to predict the route."""
    return padded_attention(
        half=precision == "fp16",
        head_dim=config.head_dim,
        value_dim=config.value_dim,
        attention_bias=bias_heads(config) > 0,
    )
