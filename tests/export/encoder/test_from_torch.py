"""Converted PyTorch modules give the same results as the modules themselves."""

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from headwaiter_export.config.choices import Mask, Pooling
from headwaiter_export.config.field_checks import ConfigError
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_export.encoder.from_torch import (
    ConversionError,
    from_cross_attention,
    from_multihead_attention,
    from_transformer_decoder,
    from_transformer_encoder,
)
from headwaiter_export.encoder.reference import random_sequences as random_pairs
from headwaiter_export.encoder.reference import run_in_pytorch
from tests.support.checkpoints import randomize
from tests.support.export.helpers import assert_close_to_scale, assert_mentions, random_sequences

# Maps one sequence [n, d] to a module's hidden rows.
Forward = Callable[[torch.Tensor], torch.Tensor]


def attention(**choices: Any) -> nn.MultiheadAttention:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(24, 3, **choices).eval()
    randomize(module)
    return module


def transformer(layers: int = 2, *, final_norm: bool = False, **choices: Any) -> nn.TransformerEncoder:
    """Build layers with different weights; the final norm has the epsilon of the layers."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(24, 3, 40, **choices)
    norm = nn.LayerNorm(24, choices.get("layer_norm_eps", 1e-5)) if final_norm else None
    module = nn.TransformerEncoder(layer, layers, norm, enable_nested_tensor=False).eval()
    randomize(module)
    return module


def forward_of(module: nn.Module, mask: Mask = Mask.NONE) -> Forward:
    """Return the module as a function of one sequence, in float64, for which PyTorch has no fast path."""
    module = copy.deepcopy(module).double()

    def forward(x: torch.Tensor) -> torch.Tensor:
        masked = torch.ones(len(x), len(x), dtype=torch.bool).triu(1) if mask is Mask.CAUSAL else None
        if isinstance(module, nn.MultiheadAttention):
            rows: torch.Tensor = module(x, x, x, attn_mask=masked, need_weights=False)[0]
        else:
            rows = module(x, mask=masked)
        return rows

    return forward


@torch.inference_mode()
def assert_equal_results(encoder: Encoder, forward: Forward) -> None:
    """Compare hidden rows in PyTorch."""
    for sequence in random_sequences(encoder.config, (1, 2, 48)):
        expected = forward(torch.from_numpy(sequence).double()).numpy()
        assert_close_to_scale(run_in_pytorch(encoder, [sequence])[0].hidden, expected)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("mask", [Mask.NONE, Mask.CAUSAL])
def test_multihead_attention_is_converted_with_every_bias_and_mask(bias: bool, mask: Mask) -> None:
    module = attention(bias=bias)
    assert_equal_results(from_multihead_attention(module, max_tokens=48, mask=mask), forward_of(module, mask))


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("final_norm", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("mask", [Mask.NONE, Mask.CAUSAL])
def test_a_transformer_encoder_is_converted_with_every_norm_bias_and_mask(
    norm_first: bool, final_norm: bool, bias: bool, mask: Mask
) -> None:
    module = transformer(norm_first=norm_first, final_norm=final_norm, bias=bias, layer_norm_eps=1e-3)
    assert_equal_results(from_transformer_encoder(module, max_tokens=48, mask=mask), forward_of(module, mask))


@pytest.mark.parametrize(
    "activation",
    ["relu", F.relu, torch.relu, nn.ReLU(), "gelu", F.gelu, nn.GELU(), nn.GELU("tanh"), F.silu, nn.SiLU()],
    # A test must have the same id in all processes; the addresses of functions differ.
    ids=lambda activation: re.sub(" at 0x[0-9a-f]+", "", str(activation)),
)
def test_every_activation_is_converted(activation: str | Callable[[torch.Tensor], torch.Tensor]) -> None:
    module = transformer(1, activation=activation)
    assert_equal_results(from_transformer_encoder(module, max_tokens=48), forward_of(module))


def test_norms_without_weights_are_converted() -> None:
    module = transformer(1)
    module.norm = nn.LayerNorm(24, elementwise_affine=False)
    assert_equal_results(from_transformer_encoder(module, max_tokens=48), forward_of(module))


@pytest.mark.parametrize("batch_first", [True, False])
def test_batch_first_does_not_change_results(batch_first: bool) -> None:
    module = transformer(batch_first=batch_first)
    encoder = from_transformer_encoder(module, max_tokens=48)
    x = torch.randn(2, 9, 24)
    with torch.inference_mode():
        batch = module(x) if batch_first else module(x.transpose(0, 1)).transpose(0, 1)
    for sequence, rows in zip(x, batch, strict=True):
        assert_close_to_scale(run_in_pytorch(encoder, [sequence.numpy()])[0].hidden, rows.numpy())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions_become_float32(dtype: torch.dtype) -> None:
    module = transformer(1).to(dtype)
    encoder = from_transformer_encoder(module, max_tokens=48)
    assert {parameter.dtype for parameter in encoder.parameters()} == {torch.float32}
    assert_equal_results(encoder, forward_of(module))


def test_the_caller_chooses_pooling_and_max_tokens() -> None:
    config = from_transformer_encoder(transformer(), max_tokens=7, pooling=Pooling.MEAN, normalize=True).config
    assert (config.max_tokens, config.pooling, config.normalize) == (7, Pooling.MEAN, True)
    with pytest.raises(ConfigError) as error:
        from_multihead_attention(attention(), max_tokens=0)
    assert_mentions(error.value, "max_tokens is 0")


def decoder(layers: int = 2, *, final_norm: bool = False, **choices: Any) -> nn.TransformerDecoder:
    torch.manual_seed(1)
    norm = nn.LayerNorm(24, choices.get("layer_norm_eps", 1e-5)) if final_norm else None
    module = nn.TransformerDecoder(nn.TransformerDecoderLayer(24, 3, 32, **choices), layers, norm).eval()
    randomize(module)
    return module


@torch.inference_mode()
def assert_equal_targets(encoder: Encoder, forward: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
    """Compare the hidden rows of targets; `forward` takes the rows of a source and of its target, in float64."""
    for sequence in random_pairs(encoder.config, (2, 3, 17, 48)):
        source, target = (torch.from_numpy(sequence[sequence[:, -1] == part, :-1]).double() for part in (0, 1))
        hidden = run_in_pytorch(encoder, [sequence])[0].hidden
        assert hidden is not None
        assert_close_to_scale(hidden[len(source) :], forward(source, target).numpy())


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("final_norm", [True, False])
@pytest.mark.parametrize("mask", [Mask.NONE, Mask.CAUSAL])
def test_a_decoder_over_an_encoder_is_converted(norm_first: bool, final_norm: bool, mask: Mask) -> None:
    choices: dict[str, Any] = {"norm_first": norm_first, "activation": "gelu", "layer_norm_eps": 1e-3}
    stacks = transformer(final_norm=final_norm, **choices), decoder(final_norm=final_norm, **choices)
    encoder = from_transformer_decoder(stacks[1], stacks[0], max_tokens=48, target_mask=mask)
    own_encoder, own_decoder = (copy.deepcopy(each).double() for each in stacks)

    def forward(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        masked = nn.Transformer.generate_square_subsequent_mask(len(target)).double() if mask is Mask.CAUSAL else None
        rows: torch.Tensor = own_decoder(target, own_encoder(source), tgt_mask=masked)
        return rows

    assert_equal_targets(encoder, forward)


def test_the_stacks_of_a_transformer_and_a_decoder_alone_are_converted() -> None:
    torch.manual_seed(0)
    # PyTorch warns that an encoder with an odd number of heads cannot use its fast path.
    whole = nn.Transformer(24, 4, 1, 2, 40, batch_first=True).eval()
    randomize(whole)
    encoder = from_transformer_decoder(whole.decoder, whole.encoder, max_tokens=48)
    own = copy.deepcopy(whole).double()
    assert_equal_targets(encoder, own)
    alone = copy.deepcopy(whole.decoder).double()
    encoder = from_transformer_decoder(whole.decoder, max_tokens=48)
    assert_equal_targets(encoder, lambda source, target: alone(target, source))


@pytest.mark.parametrize("bias", [True, False])
def test_attention_to_another_sequence_is_converted(bias: bool) -> None:
    module = attention(bias=bias)
    own = copy.deepcopy(module).double()
    assert_equal_targets(
        from_cross_attention(module, max_tokens=48),
        lambda source, target: own(target, source, source, need_weights=False)[0],
    )


@pytest.mark.parametrize(
    ("encoder", "own", "facts"),
    [
        (transformer(norm_first=True), decoder(), ["norm_first", "True", "False"]),
        (transformer(final_norm=True), decoder(), ["norm", "no norm"]),
        (transformer(layer_norm_eps=1e-3), decoder(), ["layer_norm_eps", "0.001", "1e-05"]),
        (transformer(), decoder(activation="gelu"), ["activation"]),
        (transformer(), transformer(), ["TransformerEncoder", "TransformerDecoder"]),
        (decoder(), decoder(), ["TransformerDecoder", "TransformerEncoder"]),
    ],
)
def test_stacks_that_do_not_fit_are_refused(encoder: Any, own: Any, facts: list[str]) -> None:
    with pytest.raises(ConversionError) as refused:
        from_transformer_decoder(own, encoder, max_tokens=48)
    assert_mentions(refused.value, *facts)


@pytest.mark.parametrize(
    ("attention_to_source", "facts"),
    [
        (attention(add_zero_attn=True), ["decoder: layers.1.multihead_attn.add_zero_attn"]),
        (attention(kdim=8), ["layers.1.multihead_attn.kdim is 8"]),
        (nn.MultiheadAttention(24, 4), ["layers.1.multihead_attn has 4 heads", "3"]),
        (nn.MultiheadAttention(12, 3), ["layers.1.multihead_attn has embed_dim 12", "24"]),
    ],
)
def test_a_changed_part_of_a_decoder_is_refused(attention_to_source: nn.Module, facts: list[str]) -> None:
    module = decoder()
    module.layers[1].multihead_attn = attention_to_source
    with pytest.raises(ConversionError) as refused:
        from_transformer_decoder(module, max_tokens=48)
    assert_mentions(refused.value, *facts)


@pytest.mark.parametrize("activation", [nn.SiLU(), nn.GELU("tanh")])
def test_a_decoder_with_an_activation_that_is_a_module_is_converted(activation: nn.Module) -> None:
    module = decoder(1)
    # PyTorch's clones of a layer forget such an activation, so users set it afterwards.
    module.layers[0].activation = activation
    own = copy.deepcopy(module).double()
    own.layers[0].activation = activation
    assert_equal_targets(
        from_transformer_decoder(module, max_tokens=48, target_mask="causal"),  # type: ignore[arg-type]
        lambda source, target: own(
            target, source, tgt_mask=nn.Transformer.generate_square_subsequent_mask(len(target)).double()
        ),
    )


def test_a_mask_of_an_encoder_that_is_missing_is_refused() -> None:
    with pytest.raises(ConfigError, match="source_mask"):
        from_transformer_decoder(decoder(), max_tokens=48, source_mask=Mask.CAUSAL)


class OtherAttention(nn.MultiheadAttention):
    pass


@pytest.mark.parametrize(
    ("module", "facts"),
    [
        (attention(kdim=8), ["module.kdim is 8", "24"]),
        (attention(vdim=8), ["module.vdim is 8", "24"]),
        (attention(add_bias_kv=True), ["module.bias_k", "None"]),
        (attention(add_zero_attn=True), ["module.add_zero_attn", "False"]),
        (OtherAttention(24, 3), ["module is a OtherAttention", "MultiheadAttention"]),
    ],
)
def test_unsupported_attention_is_named(module: Any, facts: list[str]) -> None:
    with pytest.raises(ConversionError) as error:
        from_multihead_attention(module, max_tokens=48)
    assert_mentions(error.value, *facts)


@pytest.mark.parametrize(
    ("attribute", "value", "facts"),
    [
        ("layers", nn.ModuleList(), ["layers is empty"]),
        ("layers.1", nn.Identity(), ["layers.1 is a Identity", "TransformerEncoderLayer"]),
        ("layers.1", transformer(1, norm_first=True).layers[0], ["layers.1", "norm_first True", "layers.0", "False"]),
        ("layers.1", nn.TransformerEncoderLayer(24, 3, 48), ["layers.1", "dim_feedforward 48", "layers.0", "40"]),
        ("layers.1", nn.TransformerEncoderLayer(24, 4, 40), ["layers.1", "nhead 4", "layers.0", "3"]),
        ("layers.0.self_attn", attention(add_zero_attn=True), ["layers.0.self_attn.add_zero_attn"]),
        ("layers.1.linear2", nn.Identity(), ["layers.1.linear2 is a Identity", "Linear"]),
        ("layers.0.activation", F.mish, ["layers.0.activation is mish", "relu, gelu or silu"]),
        ("layers.0.activation", nn.ELU(), ["layers.0.activation is ELU(alpha=1.0)", "relu, gelu or silu"]),
        ("layers.1.norm1", nn.RMSNorm(24), ["layers.1.norm1 is a RMSNorm", "LayerNorm"]),
        ("layers.0.norm2.eps", 1e-6, ["layers.0.norm2.eps is 1e-06", "layers.0.norm1.eps", "1e-05"]),
        ("norm", nn.LayerNorm(24, 1e-6), ["norm.eps is 1e-06", "layers.0.norm1.eps", "1e-05"]),
        ("norm", nn.LayerNorm([9, 24]), ["norm.normalized_shape is (9, 24)", "(24,)"]),
    ],
)
def test_an_unsupported_attribute_of_an_encoder_is_named(attribute: str, value: Any, facts: list[str]) -> None:
    module = transformer()
    owner, _, name = attribute.rpartition(".")
    setattr(module.get_submodule(owner), name, value)
    with pytest.raises(ConversionError) as error:
        from_transformer_encoder(module, max_tokens=48)
    assert_mentions(error.value, *facts)


def test_a_module_has_no_weights_of_attention_pooling() -> None:
    with pytest.raises(ConfigError, match="attention"):
        from_transformer_encoder(transformer(), max_tokens=7, pooling=Pooling.ATTENTION)
