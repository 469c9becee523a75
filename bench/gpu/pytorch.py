"""Runs encoders in PyTorch: padded, with variable-length attention, or by sentence-transformers."""

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from bench.gpu.models import made_up_tokenizer
from bench.gpu.settings import FASTEST, Settings
from bench.loads.traces import Ids
from headwaiter_export.config.choices import Mask
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_export.encoder.score_terms import ScoreTerms
from headwaiter_export.graphs.graph_layout import Axes, Packed
from headwaiter_export.graphs.portable import Portable
from headwaiter_server.runtime.packing import pack

PADDED_SEQUENCES = 32
DTYPES = {"fp32": torch.float32, "fp16": torch.float16}


class Padded(Portable):
    """Padded sequences, with PyTorch's scaled_dot_product_attention and a mask of the padding."""

    @property
    @override
    def positions(self) -> Tensor:
        batch, longest = self._token_mask.shape
        return torch.arange(longest, device=self._token_mask.device).expand(batch, longest).flatten()

    @override
    def attend(self, query: Tensor, key: Tensor, value: Tensor, heads: int, terms: ScoreTerms) -> Tensor:
        assert terms.are_zero, "the benchmark's encoders have neither masks nor biases"
        assert not terms.cap, "the benchmark's encoders have no cap of scores"
        batch, longest = self._token_mask.shape
        q, k, v = (
            rows.view(batch, longest, heads, rows.shape[1] // heads).transpose(1, 2) for rows in (query, key, value)
        )
        context = F.scaled_dot_product_attention(q, k, v, self._token_mask[:, None, None, :])
        return context.transpose(1, 2).reshape(value.shape)


class VariableLength(Packed):
    """Concatenated sequences, with PyTorch's variable-length flash attention."""

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
    def token_mask(self) -> Tensor:
        longest = self.inputs["gather"].shape[1]
        return torch.arange(longest, device=self.lengths.device) < self.lengths[:, None]

    @override
    def attend(self, query: Tensor, key: Tensor, value: Tensor, heads: int, terms: ScoreTerms) -> Tensor:
        assert not terms.have_bias, "the benchmark's encoders have no biases"
        assert not terms.cap, "the benchmark's encoders have no cap of scores"
        q, k, v = (rows.view(rows.shape[0], heads, -1) for rows in (query, key, value))
        cu_seqlens, longest = self.inputs["cu_seqlens"], self.inputs["gather"].shape[1]
        before = -1 if terms.window is None else terms.window
        after = 0 if terms.pattern is Mask.CAUSAL else before
        masks = {} if terms.are_zero else {"window_size": (before, after)}
        context: Tensor = self._varlen_attn(q, k, v, cu_seqlens, cu_seqlens, longest, longest, **masks)
        return context.flatten(1)


class Runner:
    """Runs batches of an encoder in one layout, without waiting for the device before all batches are queued."""

    def __init__(
        self,
        encoder: Encoder,
        layout: type[Padded | VariableLength],
        settings: Settings,
        dtype: torch.dtype = DTYPES[FASTEST],
    ) -> None:
        self._encoder = copy.deepcopy(encoder).to(settings.gpu.device, dtype)
        self._layout, self._gpu = layout, settings.gpu
        self._token_input = encoder.config.token_input
        self._names = {self._token_input, *layout.INPUT_AXES}

    @torch.inference_mode()
    def run(self, batches: Sequence[Sequence[Ids]]) -> NDArray[np.float32]:
        """Return the pooled vectors of all batches, [B, width]."""
        return torch.cat([self._pooled(batch) for batch in batches]).cpu().numpy()

    def _pooled(self, batch: Sequence[Ids]) -> Tensor:
        inputs = {
            name: self._gpu.upload(torch.from_numpy(rows)) for name, rows in pack(batch).feeds(self._names).items()
        }
        layout = self._layout(inputs)
        pooled: Tensor = self._encoder(layout.to_rows(inputs[self._token_input]), layout)[0]
        return pooled


def sentence_transformer(
    encoder: Encoder, sequences: Sequence[Ids], folder: Path, settings: Settings
) -> Callable[[], object]:
    """Return a function that encodes the words "w7 w12 …" of ids by sentence-transformers, in the encoder's shape."""
    from sentence_transformers import SentenceTransformer
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    config = encoder.config
    sizes = {"vocab_size": config.vocabulary_size, "hidden_size": config.d_model, "intermediate_size": config.d_ff}
    shape = BertConfig(num_hidden_layers=config.layers, num_attention_heads=config.heads, **sizes)
    BertModel(shape).save_pretrained(folder)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made_up_tokenizer(config), unk_token="w0", pad_token="w0")
    tokenizer.save_pretrained(folder)
    model = SentenceTransformer(str(folder), device=str(settings.gpu.device), model_kwargs={"dtype": DTYPES[FASTEST]})
    texts = [" ".join(f"w{each}" for each in ids.tolist()) for ids in sequences]
    return partial(model.encode, texts, batch_size=4 * PADDED_SEQUENCES, show_progress_bar=False)
