"""PyTorch's own modules, converted, give what the modules themselves give to one sequence alone."""

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from headwaiter_export.attention_layout import PackedCpu, SingleSequence
from headwaiter_export.config import ConfigError, Mask, Pooling
from headwaiter_export.encoder import Encoder
from headwaiter_export.from_torch import ConversionError, from_multihead_attention, from_transformer_encoder
from headwaiter_export.graphs import WeightsFile, trace
from headwaiter_server.runtime.packing import pack
from tests.checkpoints import randomize
from tests.export.helpers import BATCHES, assert_close_to_scale, draw, run
from tests.oracle import Array

# What a module answers to one sequence [n, d].
Answer = Callable[[torch.Tensor], torch.Tensor]


def attention(**choices: Any) -> nn.MultiheadAttention:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(24, 3, **choices).eval()
    randomize(module)
    return module


def transformer(layers: int = 2, *, final_norm: bool = False, **choices: Any) -> nn.TransformerEncoder:
    """Two layers of different weights; a norm has the layers' epsilon."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(24, 3, 40, **choices)
    norm = nn.LayerNorm(24, choices.get("layer_norm_eps", 1e-5)) if final_norm else None
    module = nn.TransformerEncoder(layer, layers, norm, enable_nested_tensor=False).eval()
    randomize(module)
    return module


def answer_of(module: nn.Module, mask: Mask = Mask.NONE) -> Answer:
    """The module's own answers, in float64; one sequence without a batch never takes PyTorch's fast path."""
    module = copy.deepcopy(module).double()

    def answer(x: torch.Tensor) -> torch.Tensor:
        unseen = torch.ones(len(x), len(x), dtype=torch.bool).triu(1) if mask is Mask.CAUSAL else None
        if isinstance(module, nn.MultiheadAttention):
            rows: torch.Tensor = module(x, x, x, attn_mask=unseen, need_weights=False)[0]
        else:
            rows = module(x, mask=unseen)
        return rows

    return answer


@torch.inference_mode()
def check(encoder: Encoder, answer: Answer, graph: Path | None = None) -> None:
    """Compare hidden rows: of each sequence alone, and, given a folder for a graph, of ragged batches too."""
    if graph is not None:
        with WeightsFile(graph / "weights.bin") as weights:
            weights.write_graph(trace(encoder, PackedCpu, pack(draw(encoder.config, (3, 2)))), graph / "graph.onnx")
    for lengths in BATCHES if graph else [(1, 2, 48)]:
        sequences = draw(encoder.config, lengths)
        expected = [answer(torch.from_numpy(sequence).double()).numpy() for sequence in sequences]
        for sequence, rows in zip(sequences, expected, strict=True):
            assert_close_to_scale(eager(encoder, sequence), rows)
        if graph is not None:
            hidden = run(graph / "graph.onnx", "cpu", sequences).hidden
            assert_close_to_scale(hidden, np.concatenate(expected))


def eager(encoder: Encoder, sequence: Array) -> Array:
    hidden: Array = encoder(torch.from_numpy(sequence), SingleSequence(len(sequence)))[1].detach().numpy()
    return hidden


def test_multihead_attention_is_the_same_alone_and_in_a_packed_batch(tmp_path: Path) -> None:
    module = attention()
    check(from_multihead_attention(module, max_tokens=48), answer_of(module), tmp_path)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("mask", [Mask.NONE, Mask.CAUSAL])
def test_every_form_of_multihead_attention_is_converted(bias: bool, mask: Mask) -> None:
    module = attention(bias=bias)
    check(from_multihead_attention(module, max_tokens=48, mask=mask), answer_of(module, mask))


def test_a_transformer_encoder_is_the_same_alone_and_in_a_packed_batch(tmp_path: Path) -> None:
    module = transformer(1)
    check(from_transformer_encoder(module, max_tokens=48), answer_of(module), tmp_path)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("final_norm", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_every_form_of_a_transformer_encoder_is_converted(norm_first: bool, final_norm: bool, bias: bool) -> None:
    module = transformer(norm_first=norm_first, final_norm=final_norm, bias=bias, layer_norm_eps=1e-3)
    check(from_transformer_encoder(module, max_tokens=48), answer_of(module))


@pytest.mark.parametrize(
    "activation",
    ["relu", F.relu, torch.relu, nn.ReLU(), "gelu", F.gelu, nn.GELU(), nn.GELU("tanh"), F.silu, nn.SiLU()],
    # Without the addresses of functions, by which two processes would not agree on the tests.
    ids=lambda activation: re.sub(" at 0x[0-9a-f]+", "", str(activation)),
)
def test_every_activation_is_converted(activation: str | Callable[[torch.Tensor], torch.Tensor]) -> None:
    module = transformer(1, activation=activation)
    check(from_transformer_encoder(module, max_tokens=48), answer_of(module))


def test_a_mask_that_pytorch_is_told_at_each_call_is_told_once() -> None:
    module = transformer()
    check(from_transformer_encoder(module, max_tokens=48, mask=Mask.CAUSAL), answer_of(module, Mask.CAUSAL))


def test_norms_without_weights_are_converted() -> None:
    module = transformer(1)
    module.norm = nn.LayerNorm(24, elementwise_affine=False)
    check(from_transformer_encoder(module, max_tokens=48), answer_of(module))


@pytest.mark.parametrize("batch_first", [True, False])
def test_the_layout_of_pytorchs_batches_is_no_matter(batch_first: bool) -> None:
    module = transformer(batch_first=batch_first)
    encoder = from_transformer_encoder(module, max_tokens=48)
    x = torch.randn(2, 9, 24)
    with torch.inference_mode():
        batch = module(x) if batch_first else module(x.transpose(0, 1)).transpose(0, 1)
    for sequence, rows in zip(x, batch, strict=True):
        assert_close_to_scale(eager(encoder, sequence.numpy()), rows.numpy())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_another_precision_becomes_float32(dtype: torch.dtype) -> None:
    module = transformer(1).to(dtype)
    encoder = from_transformer_encoder(module, max_tokens=48)
    assert {parameter.dtype for parameter in encoder.parameters()} == {torch.float32}
    check(encoder, answer_of(module))


def test_pooling_and_length_are_the_callers_choice() -> None:
    config = from_transformer_encoder(transformer(), max_tokens=7, pooling=Pooling.MEAN, normalize=True).config
    assert (config.max_tokens, config.pooling, config.normalize) == (7, Pooling.MEAN, True)
    with pytest.raises(ConfigError, match="max_tokens is 0"):
        from_multihead_attention(attention(), max_tokens=0)


class OtherAttention(nn.MultiheadAttention):
    pass


@pytest.mark.parametrize(
    ("module", "complaint"),
    [
        (attention(kdim=8), r"module\.kdim is 8: in self-attention it is embed_dim, which is 24"),
        (attention(vdim=8), r"module\.vdim is 8"),
        (attention(add_bias_kv=True), r"module\.bias_k is attended to beside the sequence"),
        (attention(add_zero_attn=True), r"module\.add_zero_attn adds a row beside the sequence"),
        (OtherAttention(24, 3), "module is a OtherAttention: only MultiheadAttention itself is known"),
    ],
)
def test_attention_that_cannot_be_reproduced_is_refused_by_name(module: Any, complaint: str) -> None:
    with pytest.raises(ConversionError, match=complaint):
        from_multihead_attention(module, max_tokens=48)


@pytest.mark.parametrize(
    ("attribute", "value", "complaint"),
    [
        ("layers", nn.ModuleList(), "layers is empty: there must be at least one"),
        ("layers.1", nn.Identity(), r"layers\.1 is a Identity: only TransformerEncoderLayer itself is known"),
        ("layers.1", transformer(1, norm_first=True).layers[0], r"layers\.1 has norm_first True, and layers\.0 False"),
        (
            "layers.1",
            nn.TransformerEncoderLayer(24, 3, 48),
            r"layers\.1 has dim_feedforward 48, and layers\.0 40: they must be alike",
        ),
        ("layers.1", nn.TransformerEncoderLayer(24, 4, 40), r"layers\.1 has nhead 4, and layers\.0 3"),
        ("layers.0.self_attn", attention(add_zero_attn=True), r"layers\.0\.self_attn\.add_zero_attn"),
        ("layers.1.linear2", nn.Identity(), r"layers\.1\.linear2 is a Identity: only Linear itself is known"),
        ("layers.0.activation", F.mish, r"layers\.0\.activation is mish: it must be PyTorch's own relu, gelu or silu"),
        ("layers.0.activation", nn.ELU(), r"layers\.0\.activation is ELU\(alpha=1\.0\): it must be"),
        ("layers.1.norm1", nn.RMSNorm(24), r"layers\.1\.norm1 is a RMSNorm: only LayerNorm itself is known"),
        ("layers.0.norm2.eps", 1e-6, r"layers\.0\.norm2\.eps is 1e-06, and layers\.0\.norm1\.eps 1e-05"),
        ("norm", nn.LayerNorm(24, 1e-6), r"norm\.eps is 1e-06, and layers\.0\.norm1\.eps 1e-05"),
        ("norm", nn.LayerNorm((9, 24)), r"norm\.normalized_shape is \(9, 24\): it must be that of a row, \(24,\)"),
    ],
)
def test_an_encoder_that_cannot_be_reproduced_is_refused_by_name(attribute: str, value: Any, complaint: str) -> None:
    module = transformer()
    owner, _, name = attribute.rpartition(".")
    setattr(module.get_submodule(owner), name, value)
    with pytest.raises(ConversionError, match=complaint):
        from_transformer_encoder(module, max_tokens=48)
