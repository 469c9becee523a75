"""What the known architectures call their settings and their tensors."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headwaiter_export.config import Activation, Norm, Pooling
from headwaiter_export.inputs import Patches, Tokens


@dataclass(frozen=True)
class Family:
    """The names of one architecture.

    Attributes:
        input: what the encoder takes.
        prefix: stands before a tensor's name where the checkpoint has a head beside the encoder.
        counts: our names of whole numbers in the configuration to those in config.json.
        activation: the name of the activation in config.json.
        modules: our names of modules to theirs, outside the layers.
        layer: stands before a layer's number.
        layer_modules: our names of modules to theirs, inside a layer.
        leftovers: beginnings of the names of tensors that the hidden rows do not depend on.
        switches: our names of switches in the configuration to those in config.json, where all may be left out.
        choices: what the configuration says of every encoder of the family.
        pooling: what a checkpoint that does not say is pooled by.
    """

    input: Tokens | Patches
    prefix: str
    counts: Mapping[str, str]
    activation: str
    modules: Mapping[str, str]
    layer: str
    layer_modules: Mapping[str, str]
    leftovers: tuple[str, ...]
    switches: Mapping[str, str] = field(default_factory=dict)
    choices: Mapping[str, Any] = field(default_factory=dict)
    pooling: Pooling = Pooling.MEAN

    def tensor(self, name: str) -> str:
        """Return their name of one of our tensors."""
        module, _, kind = name.rpartition(".")
        if module.startswith("layers."):
            _, number, part = module.split(".", 2)
            return f"{self.layer}.{number}.{self.layer_modules[part]}.{kind}"
        return f"{self.modules[module]}.{kind}"


_BERT = Family(
    input=Tokens(),
    prefix="bert.",
    counts={
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
    leftovers=("embeddings.position_ids", "pooler.", "cls."),
)
_ROBERTA = replace(
    _BERT,
    input=Tokens(positions_follow_padding=True),
    prefix="roberta.",
    leftovers=("embeddings.position_ids", "pooler.", "lm_head."),
)
_DISTILBERT = Family(
    input=_BERT.input,
    prefix="distilbert.",
    counts={
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
    leftovers=("vocab_transform.", "vocab_layer_norm.", "vocab_projector."),
)
_VIT = Family(
    input=Patches(),
    prefix="vit.",
    counts=_BERT.counts,
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
    leftovers=("embeddings.mask_token", "pooler.", "decoder."),
    switches={"query_bias": "qkv_bias", "key_bias": "qkv_bias", "value_bias": "qkv_bias"},
    choices={"norm": Norm.PRE, "final_norm": True, "embedding_norm": False},
    pooling=Pooling.CLS,
)

# By the `model_type` of config.json.
FAMILIES: dict[str, Family] = {
    "bert": _BERT,
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "distilbert": _DISTILBERT,
    "vit": _VIT,
}

# By the name that `transformers` gives a function.
ACTIVATIONS: dict[str, Activation] = {
    "gelu": Activation.GELU,
    "gelu_new": Activation.GELU_TANH,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "relu": Activation.RELU,
    "silu": Activation.SILU,
    "swish": Activation.SILU,
}
