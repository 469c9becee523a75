"""Presets: named forms of self-attention.

Each preset is a function that returns an EncoderConfig; its argument replaces any of the fields. The input rows are
features of width d_model without a projection, unless vocabulary_size or feature_width is set.

Notation: X is the input [n, d_model], x_i its row i, h a head, Q_h = X W_h^Q, K_h = X W_h^K and V_h = X W_h^V.
"""

from collections.abc import Callable, Mapping
from typing import Any

from headwaiter_export.config.encoder import EncoderConfig

# Fields of EncoderConfig by name.
Choices = Mapping[str, Any]
_DEFAULTS: Choices = {
    "layers": 1,
    "d_ff": 0,
    "max_tokens": 512,
    "positions": "none",
    "embedding_norm": False,
    "norm_eps": 1e-5,
    "pooling": "none",
}
_NO_BIASES: Choices = {"query_bias": False, "key_bias": False, "value_bias": False, "output_bias": False}
_NO_RESIDUAL_OR_NORM: Choices = {"residual": False, "norm": "none"}
_HEADS_ALONE: Choices = {**_DEFAULTS, **_NO_BIASES, **_NO_RESIDUAL_OR_NORM, "output_projection": False}


def vit_block(choices: Choices) -> EncoderConfig:
    """The attention block of a Vision Transformer: x + [head_1 … head_H] W_O; the heads get LayerNorm(x).

    head_h = softmax(Q_h K_hᵀ / √head_dim) V_h without biases. head_dim may differ from d_model / H. A single head with
    head_dim = d_model has no W_O. Setting d_ff adds the feed-forward block. Weights may be fused to `qkv`.
    Source: https://arxiv.org/abs/2010.11929, equation 2 and appendix A; head_dim and the missing W_O as in
    https://github.com/lucidrains/vit-pytorch.
    """
    preset = {**_DEFAULTS, **_NO_BIASES, "norm": "pre", "output_bias": True}
    values = {**preset, "d_model": 192, "heads": 3, "head_dim": 64, "max_tokens": 197, **choices}
    one_head_of_full_width = values["heads"] == 1 and values["head_dim"] == values["d_model"]
    return _config({"output_projection": not one_head_of_full_width, **values})


def concat_heads(choices: Choices) -> EncoderConfig:
    """Concatenated heads, in which a row attends to all rows but itself.

    y_i is the concatenation over h of Σ_{j≠i} a_hij V_hj, where
    a_hij = exp(Q_hi · K_hj / √head_dim) / Σ_{l≠i} exp(Q_hi · K_hl / √head_dim); a row's weight on itself is 0.
    Source: https://arxiv.org/abs/1706.03762, section 3.2, without the diagonal and the output projection.
    """
    return _config({**_HEADS_ALONE, "mask": "self_excluding", "d_model": 64, "heads": 4, **choices})


def projected_heads(choices: Choices) -> EncoderConfig:
    """Concatenated heads that map rows of width I to rows of width O: X [S, I] → [head_1 … head_N] [S, O].

    S is the number of rows, N = heads, I = d_model, D = N · head_dim and O = N · value_dim.
    head_h = softmax(Q_h K_hᵀ / √(D/N)) V_h, where Q, K and V have biases. Positions are learned; rotary can be set.
    Source: https://arxiv.org/abs/1706.03762, section 3.2.2, without W_O; rotary: https://arxiv.org/abs/2104.09864.
    """
    preset = {**_DEFAULTS, **_NO_RESIDUAL_OR_NORM, "output_projection": False, "positions": "learned"}
    return _config({**preset, "d_model": 48, "heads": 4, "head_dim": 16, "value_dim": 24, **choices})


def masked_heads(choices: Choices) -> EncoderConfig:
    """Concatenated causal heads without biases.

    y_i is the concatenation over h of Σ_{j≤i} softmax_j(Q_hi · K_hj / √head_dim) V_hj.

    Source: https://arxiv.org/abs/1706.03762, section 3.2.3, without W_O, like the first multi-head attention in
    https://github.com/karpathy/ng-video-lecture.
    """
    return _config({**_HEADS_ALONE, "mask": "causal", "d_model": 64, "heads": 4, **choices})


def transformer_encoder(choices: Choices) -> EncoderConfig:
    """The base encoder of "Attention Is All You Need": post-norm layers, relu, sinusoidal positions.

    x ← LayerNorm(x + MultiHead(x)), then x ← LayerNorm(x + W_2 relu(W_1 x + b_1) + b_2). Positions can be set to
    learned. The paper multiplies embeddings by √d_model; here the weights of the embedding include this factor.
    Source: https://arxiv.org/abs/1706.03762, sections 3.1 to 3.5.
    """
    vocabulary_size = 0 if "feature_width" in choices else 37_000
    preset = {**_DEFAULTS, "positions": "sinusoidal", "activation": "relu", "vocabulary_size": vocabulary_size}
    return _config({**preset, "d_model": 512, "heads": 8, "layers": 6, "d_ff": 2048, **choices})


def attention_block(choices: Choices) -> EncoderConfig:
    """One attention head with an output projection and without biases: softmax(Q Kᵀ / √d) V W_O.

    d = d_model; W_V and W_O are d × d. Setting heads gives more heads.
    Source: https://arxiv.org/abs/1706.03762, equation 1.
    """
    return _config({**_HEADS_ALONE, "output_projection": True, "d_model": 64, "heads": 1, **choices})


def switch_head(choices: Choices) -> EncoderConfig:
    """Heads with mixtures of experts: E value projections and E output projections for each head, without biases.

    y_i = Σ_h Σ_e g_ihe W_he^O c_hi, where c_hi = Σ_j softmax_j(Q_hi · K_hj / √head_dim) Σ_e s_jhe W_he^V x_j.
    In each head, the gate s_jhe is sigmoid(S_he · x_j) for the active_experts largest S_he · x_j, and 0 for the others.
    The gate g_ihe is computed in the same way from G_he · x_i. Gates are not normalised.
    Positions can be set to rotary.
    Source: https://arxiv.org/abs/2312.07987, and https://github.com/robertcsordas/switchhead.
    """
    experts = {"experts": 4, "active_experts": 2}
    return _config({**_HEADS_ALONE, "output_projection": True, "d_model": 64, "heads": 2, **experts, **choices})


PRESETS: Mapping[str, Callable[[Choices], EncoderConfig]] = {
    "vit-block": vit_block,
    "concat-heads": concat_heads,
    "projected-heads": projected_heads,
    "masked-heads": masked_heads,
    "transformer-encoder": transformer_encoder,
    "attention-block": attention_block,
    "switch-head": switch_head,
}


def _config(values: dict[str, Any]) -> EncoderConfig:
    if not values.get("vocabulary_size") and not values.get("feature_width"):
        values = {"feature_projection": False, **values, "feature_width": values["d_model"]}
    return EncoderConfig.from_dict(values)
