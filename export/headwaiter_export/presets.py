"""Forms of self-attention that have a name: each is an EncoderConfig, of which every field may be chosen otherwise.

Notation: x_i is row i of the input [n, d_model], h a head, Q_h = X W_h^Q, K_h = X W_h^K and V_h = X W_h^V. Rows come as
features of width d_model, without a projection, unless a vocabulary or another feature width is chosen.
"""

from collections.abc import Callable, Mapping
from typing import Any

from headwaiter_export.config import EncoderConfig

Choices = Mapping[str, Any]

_ATTENTION_ALONE: Choices = {
    "layers": 1,
    "d_ff": 0,
    "max_tokens": 512,
    "positions": "none",
    "embedding_norm": False,
    "norm_eps": 1e-5,
    "pooling": "none",
}
_NO_BIASES: Choices = {"query_bias": False, "key_bias": False, "value_bias": False, "output_bias": False}
_NOTHING_AROUND: Choices = {"residual": False, "norm": "none"}


def vit_block(choices: Choices) -> EncoderConfig:
    """The attention block of a Vision Transformer: x + [head_1 … head_H] W_O, where the heads see LayerNorm(x).

    head_h = softmax(Q_h K_hᵀ / √head_dim) V_h without biases; head_dim is free of d_model. One head of the model's own
    width has no W_O. Weights may come with q, k and v fused, as `qkv`. With d_ff the feed-forward block follows.
    Source: https://arxiv.org/abs/2010.11929, equation 2 and appendix A; the free head_dim and the dropped projection
    are those of https://github.com/lucidrains/vit-pytorch.
    """
    preset = {**_ATTENTION_ALONE, **_NO_BIASES, "norm": "pre", "output_bias": True}
    values = {**preset, "d_model": 192, "heads": 3, "head_dim": 64, "max_tokens": 197, **choices}
    has_width_of_model = values["heads"] == 1 and values["head_dim"] == values["d_model"]
    return _config({"output_projection": not has_width_of_model, **values})


def concat_heads(choices: Choices) -> EncoderConfig:
    """Independent heads that look at all other rows, concatenated: y_i = [Σ_{j≠i} a_hij V_hj] over h.

    a_hij = exp(Q_hi · K_hj / √head_dim) / Σ_{l≠i} exp(Q_hi · K_hl / √head_dim): a row's weight on itself is zero.
    Source: https://arxiv.org/abs/1706.03762, section 3.2, less the diagonal and the output projection.
    """
    alone = {**_ATTENTION_ALONE, **_NO_BIASES, **_NOTHING_AROUND}
    preset = {**alone, "mask": "self_excluding", "output_projection": False}
    return _config({**preset, "d_model": 64, "heads": 4, **choices})


def projected_heads(choices: Choices) -> EncoderConfig:
    """Heads that take rows of width I to rows of width O: X [S, I] → [head_1 … head_N] [S, O].

    I = d_model, the model dimension is D = N · head_dim, and O = N · value_dim for N = heads. Q, K and V have biases,
    and head_h = softmax(Q_h K_hᵀ / √(D/N)) V_h. Positions are learned, or rotary if so chosen.
    Source: https://arxiv.org/abs/1706.03762, section 3.2.2, without W_O; rotary: https://arxiv.org/abs/2104.09864.
    """
    preset = {**_ATTENTION_ALONE, **_NOTHING_AROUND, "output_projection": False, "positions": "learned"}
    return _config({**preset, "d_model": 48, "heads": 4, "head_dim": 16, "value_dim": 24, **choices})


def masked_heads(choices: Choices) -> EncoderConfig:
    """Causal heads, concatenated: y_i = [Σ_{j≤i} softmax_j(Q_hi · K_hj / √head_dim) V_hj] over h, without biases.

    Source: https://arxiv.org/abs/1706.03762, section 3.2.3, without W_O, as the first multi-head attention of
    https://github.com/karpathy/ng-video-lecture.
    """
    alone = {**_ATTENTION_ALONE, **_NO_BIASES, **_NOTHING_AROUND}
    return _config({**alone, "mask": "causal", "output_projection": False, "d_model": 64, "heads": 4, **choices})


def transformer_encoder(choices: Choices) -> EncoderConfig:
    """The encoder of "Attention Is All You Need", in its base size: post-norm layers, relu, sinusoidal positions.

    x ← LayerNorm(x + MultiHead(x)), x ← LayerNorm(x + W_2 relu(W_1 x + b_1) + b_2). Positions may be chosen learned.
    The paper multiplies embeddings by √d_model: here that is part of the weights.
    Source: https://arxiv.org/abs/1706.03762, sections 3.1 to 3.5.
    """
    vocabulary_size = 0 if "feature_width" in choices else 37_000
    preset = {**_ATTENTION_ALONE, "positions": "sinusoidal", "activation": "relu", "vocabulary_size": vocabulary_size}
    return _config({**preset, "d_model": 512, "heads": 8, "layers": 6, "d_ff": 2048, **choices})


def attention_block(choices: Choices) -> EncoderConfig:
    """One attention with its output projection: softmax(Q Kᵀ / √d) V W_O, W_V and W_O of d × d, without biases.

    d = d_model, and there is one head unless more are chosen.
    Source: https://arxiv.org/abs/1706.03762, equation 1.
    """
    return _config({**_ATTENTION_ALONE, **_NO_BIASES, **_NOTHING_AROUND, "d_model": 64, "heads": 1, **choices})


PRESETS: Mapping[str, Callable[[Choices], EncoderConfig]] = {
    "vit-block": vit_block,
    "concat-heads": concat_heads,
    "projected-heads": projected_heads,
    "masked-heads": masked_heads,
    "transformer-encoder": transformer_encoder,
    "attention-block": attention_block,
}


def _config(values: dict[str, Any]) -> EncoderConfig:
    if not values.get("vocabulary_size") and not values.get("feature_width"):
        values = {"feature_projection": False, **values, "feature_width": values["d_model"]}
    return EncoderConfig.from_dict(values)
