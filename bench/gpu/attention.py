"""Times causal attention alone: ONNX Runtime's operators beside PyTorch's kernels.

The times are those of the GPU's kernels for one batch, without copies and without the time to start the kernels.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench.findings import Findings
from bench.gpu.attention_operators import HEADS, OUTPUT, VARIANTS, Inputs, Rows, bias_alone
from bench.gpu.correctness import hidden_relative_error
from bench.gpu.routes import printed_kernels, read_routes
from bench.gpu.settings import Settings
from headwaiter_server.runtime.graph import open_session, session_options


def attention(settings: Settings, findings: Findings) -> None:
    """Compare and time all variants; each length has batches of the same number of tokens."""
    tokens = settings.effort.attention_tokens
    for length in tokens:
        rows = Rows.random(max(tokens) // length, length)
        label = f"{rows.sequences} × {length:,} tokens, fp16"
        expected = _pytorch(rows, settings)
        for name, variant in VARIANTS.items():
            with findings.attempt(f"{label}: {name}"):
                _time(f"{label}: {name}", *variant(rows), expected, settings, findings)
        with findings.attempt(f"{label}: attention_bias alone"):
            _time(f"{label}: attention_bias alone", *bias_alone(rows), None, settings, findings)
        for name, kernel in (("flash attention", _flash), ("variable-length attention", _variable_length)):
            with _optional(f"{label}: PyTorch's {name}, ms", findings):
                findings.record(f"{label}: PyTorch's {name}, ms", _kernels_ms(kernel(rows, settings), settings))


def _time(
    label: str,
    graph: bytes,
    inputs: Inputs,
    expected: NDArray[np.float32] | None,
    settings: Settings,
    findings: Findings,
) -> None:
    with printed_kernels() as printed:
        session = open_session(graph, "cuda", session_options(None))
        (output,) = session.run([OUTPUT], dict(inputs))
        kernel = read_routes(printed())
    if expected is not None:
        findings.record(f"{label}: kernel", kernel)
        error = hidden_relative_error(output.reshape(expected.shape), expected)
        findings.require(f"{label}: relative error", error, "≤", 5e-3)
    run = settings.gpu.without_copies(session, inputs, [OUTPUT])
    findings.record(f"{label}, ms", _kernels_ms(run, settings))


def _kernels_ms(run: Callable[[], object], settings: Settings) -> float:
    run()  # The first run allocates memory.
    return settings.gpu.kernels_ms(run)


@contextmanager
def _optional(name: str, findings: Findings) -> Iterator[None]:
    """Skip a measurement that this version of PyTorch or this GPU cannot make."""
    findings.require_time()
    try:
        yield
    except Exception as error:  # noqa: BLE001
        findings.skip(name, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")


@torch.inference_mode()
def _pytorch(rows: Rows, settings: Settings) -> NDArray[np.float32]:
    """Return the context [T, H·d] of attention in float32."""
    query, key, value = (_heads(each, rows, settings).float() for each in rows.by_name().values())
    context = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    result: NDArray[np.float32] = context.transpose(1, 2).flatten(0, 1).flatten(1).cpu().numpy()
    return result


def _flash(rows: Rows, settings: Settings) -> Callable[[], object]:
    query, key, value = (_heads(each, rows, settings).contiguous() for each in rows.by_name().values())

    def run() -> Tensor:
        with torch.inference_mode(), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return F.scaled_dot_product_attention(query, key, value, is_causal=True)

    return run


def _variable_length(rows: Rows, settings: Settings) -> Callable[[], object]:
    from torch.nn.attention.varlen import varlen_attn

    attend: Callable[..., object] = varlen_attn
    # A causal mask is another argument in older versions.
    has_window = "window_size" in inspect.signature(varlen_attn).parameters
    causal = {"window_size": (-1, 0)} if has_window else {"is_causal": True}
    query, key, value = (
        torch.from_numpy(each).to(settings.gpu.device).view(len(each), HEADS, -1) for each in rows.by_name().values()
    )
    starts = torch.arange(rows.sequences + 1, dtype=torch.int32, device=settings.gpu.device) * rows.tokens

    def run() -> object:
        with torch.inference_mode():
            return attend(query, key, value, starts, starts, rows.tokens, rows.tokens, **causal)

    return run


def _heads(each: NDArray[np.generic], rows: Rows, settings: Settings) -> Tensor:
    """Arrange rows [T, H·d] as [B, H, N, d]."""
    cells = torch.from_numpy(each).to(settings.gpu.device).view(rows.sequences, rows.tokens, HEADS, -1)
    return cells.transpose(1, 2)
