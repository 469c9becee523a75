"""The same encoder in PyTorch, as one would serve it there: padded batches, and variable-length attention."""

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from bench.gpu.setting import Setting
from headwaiter_export.attention_layout import Axes, Packed, Portable
from headwaiter_export.config import Mask
from headwaiter_export.encoder import Encoder
from headwaiter_server.runtime.packing import pack

Ids = NDArray[np.int64]

PADDED_SEQUENCES = 32


class Padded(Portable):
    """Padded sequences, with PyTorch's scaled_dot_product_attention under a mask of the padding."""

    @property
    @override
    def positions(self) -> Tensor:
        batch, longest = self._mask.shape
        return torch.arange(longest, device=self._mask.device).expand(batch, longest).flatten()

    @override
    def attend(self, query: Tensor, key: Tensor, value: Tensor, heads: int, mask: Mask) -> Tensor:
        batch, longest = self._mask.shape
        q, k, v = (
            rows.view(batch, longest, heads, rows.shape[1] // heads).transpose(1, 2) for rows in (query, key, value)
        )
        context = F.scaled_dot_product_attention(q, k, v, self._mask[:, None, None, :])
        return context.transpose(1, 2).reshape(value.shape)


class VariableLength(Packed):
    """Sequences end to end, with PyTorch's flash attention by cumulative lengths."""

    INPUT_AXES: ClassVar[Axes] = {
        "positions": ("tokens",),
        "lengths": ("batch",),
        "gather": ("batch", "sequence"),
        "cu_seqlens": ("batch + 1",),
    }

    def __init__(self, inputs: Mapping[str, Tensor]) -> None:
        super().__init__(inputs)
        from torch.nn.attention.varlen import varlen_attn

        self._varlen_attn: Callable[..., Any] = varlen_attn

    @property
    @override
    def mask(self) -> Tensor:
        longest = self._inputs["gather"].shape[1]
        return torch.arange(longest, device=self.lengths.device) < self.lengths[:, None]

    @override
    def attend(self, query: Tensor, key: Tensor, value: Tensor, heads: int, mask: Mask) -> Tensor:
        q, k, v = (rows.view(rows.shape[0], heads, -1) for rows in (query, key, value))
        cu_seqlens, longest = self._inputs["cu_seqlens"], self._inputs["gather"].shape[1]
        context: Tensor = self._varlen_attn(q, k, v, cu_seqlens, cu_seqlens, longest, longest)
        return context.flatten(1)


def why_no_variable_length(setting: Setting) -> str:
    """Return why PyTorch's variable-length attention cannot be compared with; empty where it can."""
    if setting.provider != "cuda":
        return "PyTorch has variable-length attention for CUDA only"
    if find_spec("torch.nn.attention.varlen") is None:
        return f"PyTorch {torch.__version__} has no torch.nn.attention.varlen"
    return ""


class Runner:
    """An encoder on the device, that answers batches in one layout.

    It never waits for the device between two batches: all vectors are brought back together, in the end.
    """

    def __init__(self, encoder: Encoder, lowering: type[Padded | VariableLength], setting: Setting) -> None:
        self._encoder, self._lowering, self._setting = encoder, lowering, setting
        self._token_input = encoder.config.token_input
        self._names = {self._token_input, *lowering.INPUT_AXES}

    def compile(self) -> None:
        """Have the encoder's layers compiled for any shape, which the first batches do.

        All layers run what was compiled for the first, which saves minutes; what is around them is little.
        """
        for layer in self._encoder.layers:
            layer.compile(dynamic=True)

    @torch.inference_mode()
    def run(self, batches: Sequence[Sequence[Ids]]) -> NDArray[np.float32]:
        """Return the pooled vectors of all batches, [B, width]."""
        return torch.cat([self._pooled(batch) for batch in batches]).cpu().numpy()

    def _pooled(self, batch: Sequence[Ids]) -> Tensor:
        inputs = {name: self._upload(rows) for name, rows in pack(batch).feeds(self._names).items()}
        lowering = self._lowering(inputs)
        pooled: Tensor = self._encoder(lowering.to_rows(inputs[self._token_input]), lowering)[0]
        return pooled

    def _upload(self, rows: NDArray[np.generic]) -> Tensor:
        tensor = torch.from_numpy(rows)
        # From memory that may be paged out, a copy would wait for all that the device was given before it.
        pinned = tensor.pin_memory() if self._setting.provider == "cuda" else tensor
        return pinned.to(self._setting.device, non_blocking=True)
