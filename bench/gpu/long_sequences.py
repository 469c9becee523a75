"""Checks batches with more than 2³¹ attention scores, where an index of 32 bits would overflow."""

from pathlib import Path

import numpy as np
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from bench.findings import Findings
from bench.gpu.correctness import Rows, hidden_relative_error, pytorch_outputs
from bench.gpu.models import random_model, served_plan, write
from bench.gpu.routes import packed_attention
from bench.gpu.settings import PRECISIONS, Precision, Settings
from headwaiter_export.config.choices import Mask
from headwaiter_export.config.presets import masked_heads
from headwaiter_export.encoder.attention_layout import SingleSequence
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_export.encoder.reference import random_sequences
from headwaiter_export.encoder.score_terms import ScoreTerms
from headwaiter_server.runtime.graph import EncoderGraph
from headwaiter_server.runtime.packing import pack

# Sequences of a batch, tokens of each, and heads.
_BATCHES = ((1, 16_384, 16), (4, 8192, 32))
_HEAD_DIM = 16
# Rows are compared in groups, because an overflow makes only some rows wrong.
_GROUP_ROWS = 1024
_LARGEST_ERROR: dict[Precision, float] = {"fp32": 1e-4, "fp16": 5e-3}


class CausalSequence(SingleSequence):
    """One sequence with causal attention in PyTorch's own kernel, which stores no scores."""

    @override
    def attend(self, query: Tensor, key: Tensor, value: Tensor, heads: int, terms: ScoreTerms) -> Tensor:
        assert (terms.pattern, terms.window, terms.have_bias) == (Mask.CAUSAL, None, False)
        # Without a dimension for the batch, PyTorch would choose a kernel that stores the scores.
        q, k, v = (self._split_heads(rows, heads)[None] for rows in (query, key, value))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)[0].transpose(0, 1).flatten(1)


def long_sequences(settings: Settings, findings: Findings) -> None:
    """Compare one causal attention layer on long sequences with PyTorch, in every precision."""
    for sequences, tokens, heads in _BATCHES:
        choices = {"d_model": heads * _HEAD_DIM, "heads": heads, "max_tokens": tokens, "pooling": "mean"}
        # There are no norms and no residuals, so the hidden rows are the context of attention.
        encoder = random_model(masked_heads(choices), settings)
        name = f"causal, {sequences} × {encoder.config.max_tokens:,} tokens × {encoder.config.heads} heads"
        with findings.attempt(name):
            batch = random_sequences(encoder.config, [encoder.config.max_tokens] * sequences)
            expected = [each.hidden for each in pytorch_outputs(encoder, batch, settings, CausalSequence)]
            for precision in PRECISIONS:
                label = f"{name}, {precision}"
                with findings.attempt(label):
                    path = settings.folder / f"{sequences} × {tokens}.{precision}.onnx"
                    error = _largest_error(encoder, batch, expected, precision, path)
                    group = f"{_GROUP_ROWS:,} rows"
                    findings.require(
                        f"{label}: hidden, largest relative error of {group}", error, "≤", _LARGEST_ERROR[precision]
                    )


def _largest_error(
    encoder: Encoder, batch: list[Rows], expected: list[Rows | None], precision: Precision, path: Path
) -> float:
    write(encoder, served_plan(precision).layout, precision, path)
    graph = EncoderGraph.open(path, "cuda", attention=packed_attention(encoder.config, precision))
    packed = pack(batch)
    hidden = graph.run(packed, hidden=True).hidden
    assert hidden is not None
    errors = [
        hidden_relative_error(actual[start : start + _GROUP_ROWS], rows[start : start + _GROUP_ROWS])
        for actual, rows in zip(packed.split(hidden), expected, strict=True)
        if rows is not None
        for start in range(0, len(rows), _GROUP_ROWS)
    ]
    return float(np.max(errors))
