"""Names of configuration fields and tensors in the supported checkpoint families."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headwaiter_export.checkpoint_inputs import PatchInput, TokenInput
from headwaiter_export.config import Activation, Norm, Pooling


@dataclass(frozen=True)
class Family:
    """The names of one architecture. Maps go from names in Headwaiter to names in the checkpoint.

    Attributes:
        input: how sequences enter the encoder.
        prefix: prefix of the encoder's tensors in a checkpoint that also has a head.
        sizes: whole numbers of EncoderConfig, and their fields in config.json.
        activation: field of config.json that holds the activation.
        modules: modules outside the layers.
        layer: prefix of a layer's number.
        layer_modules: modules inside a layer.
        ignored: prefixes of tensors that hidden rows do not depend on.
        booleans: booleans of EncoderConfig, and their fields in config.json, all of them optional.
        choices: fields of EncoderConfig that are the same in every encoder of the family.
        pooling: pooling of a checkpoint that names none.
    """

    input: TokenInput | PatchInput
    prefix: str
    sizes: Mapping[str, str]
    activation: str
    modules: Mapping[str, str]
    layer: str
    layer_modules: Mapping[str, str]
    ignored: tuple[str, ...]
    booleans: Mapping[str, str] = field(default_factory=dict)
    choices: Mapping[str, Any] = field(default_factory=dict)
    pooling: Pooling = Pooling.MEAN

    def tensor_name(self, name: str) -> str:
        """Return the checkpoint's name of a tensor of `Encoder.state_dict()`."""
        module, _, kind = name.rpartition(".")
        if module.startswith("layers."):
            _, number, part = module.split(".", 2)
            return f"{self.layer}.{number}.{self.layer_modules[part]}.{kind}"
        return f"{self.modules[module]}.{kind}"


_BERT = Family(
    input=TokenInput(),
    prefix="bert.",
    sizes={
        "d_model": "hidden_size",
        "heads": "num_attention_heads",
        "layers": "num_hidden_layers",
        "d_ff": "intermediate_size",
    },
    activation="hidden_act",
    modules={
        "embedding.tokens": "embeddings.word_embeddings",
        "embedding.positions.table": "embeddings.position_embeddings",
        "embedding.norm": "embeddings.LayerNorm",
    },
    layer="encoder.layer",
    layer_modules={
        "attention.query": "attention.self.query",
        "attention.key": "attention.self.key",
        "attention.value": "attention.self.value",
        "attention.output": "attention.output.dense",
        "attention_norm": "attention.output.LayerNorm",
        "feed_forward.up": "intermediate.dense",
        "feed_forward.down": "output.dense",
        "feed_forward_norm": "output.LayerNorm",
    },
    ignored=("embeddings.position_ids", "pooler.", "cls."),
)
_ROBERTA = replace(
    _BERT,
    input=TokenInput(positions_follow_padding=True),
    prefix="roberta.",
    ignored=("embeddings.position_ids", "pooler.", "lm_head."),
)
_DISTILBERT = Family(
    input=_BERT.input,
    prefix="distilbert.",
    sizes={
        "d_model": "dim",
        "heads": "n_heads",
        "layers": "n_layers",
        "d_ff": "hidden_dim",
    },
    activation="activation",
    modules=_BERT.modules,
    layer="transformer.layer",
    layer_modules={
        "attention.query": "attention.q_lin",
        "attention.key": "attention.k_lin",
        "attention.value": "attention.v_lin",
        "attention.output": "attention.out_lin",
        "attention_norm": "sa_layer_norm",
        "feed_forward.up": "ffn.lin1",
        "feed_forward.down": "ffn.lin2",
        "feed_forward_norm": "output_layer_norm",
    },
    ignored=("vocab_transform.", "vocab_layer_norm.", "vocab_projector."),
)
_VIT = Family(
    input=PatchInput(),
    prefix="vit.",
    sizes=_BERT.sizes,
    activation="hidden_act",
    modules={
        "embedding.tokens": "embeddings.patch_embeddings.projection",
        "embedding.positions.table": "embeddings.position_embeddings",
        "norm": "layernorm",
    },
    layer="encoder.layer",
    layer_modules={
        "attention.query": "attention.attention.query",
        "attention.key": "attention.attention.key",
        "attention.value": "attention.attention.value",
        "attention.output": "attention.output.dense",
        "attention_norm": "layernorm_before",
        "feed_forward.up": "intermediate.dense",
        "feed_forward.down": "output.dense",
        "feed_forward_norm": "layernorm_after",
    },
    ignored=("embeddings.mask_token", "pooler.", "decoder."),
    booleans={"query_bias": "qkv_bias", "key_bias": "qkv_bias", "value_bias": "qkv_bias"},
    choices={"norm": Norm.PRE, "final_norm": True, "embedding_norm": False},
    pooling=Pooling.CLS,
)

# Keys are values of `model_type` in config.json.
FAMILIES: dict[str, Family] = {
    "bert": _BERT,
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "distilbert": _DISTILBERT,
    "vit": _VIT,
}

# Keys are names of activations in `transformers`.
ACTIVATIONS: dict[str, Activation] = {
    "gelu": Activation.GELU,
    "gelu_new": Activation.GELU_TANH,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "relu": Activation.RELU,
    "silu": Activation.SILU,
    "swish": Activation.SILU,
}
