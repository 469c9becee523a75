"""The supported families of checkpoints: how each names its configuration fields and its tensors.

`checkpoints.py` chooses a family by `model_type` in config.json, and translates the family's names into those of
EncoderConfig and `Encoder.state_dict()`. A new family needs an entry here, and code only for a new kind of input.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headwaiter_export.checkpoint_inputs import BucketedTokenInput, PatchInput, RotaryTokenInput, TokenInput
from headwaiter_export.config import Activation, Norm, Pooling, Positions
from headwaiter_export.head_config import HeadActivation


@dataclass(frozen=True)
class SequenceHead:
    """The head of a family that scores each sequence by its first row.

    Attributes:
        output: module of the linear layer that computes the logits.
        dense: module of the linear layer before it; empty if there is none.
        activation: activation between the two; None for the activation of the feed-forward layers.
    """

    output: str
    dense: str = ""
    activation: HeadActivation | None = None


@dataclass(frozen=True)
class Family:
    """The names of one family. The keys of mappings are Headwaiter's names, the values the checkpoint's.

    Attributes:
        input: the encoder's input.
        tensor_prefix: prefix of the encoder's tensors in a checkpoint that also has a head.
        size_fields: integers of EncoderConfig, and their fields in config.json.
        activation_field: field of config.json that names the activation.
        module_names: modules outside the layers.
        layer_prefix: name of a layer without its number.
        shared_module_names: modules inside a layer that all layers share.
        layer_module_names: modules inside a layer.
        ignored_prefixes: prefixes of tensors that do not affect hidden rows.
        boolean_fields: booleans of EncoderConfig, and their fields in config.json, which may be absent.
        fixed_fields: fields of EncoderConfig that have the same value in the whole family.
        default_pooling: pooling of a checkpoint that names no pooling.
        norm_eps: epsilon of the norms if the family ignores layer_norm_eps in config.json, otherwise None.
        default_norm_eps: epsilon of the norms if config.json has no layer_norm_eps.
        required_fields: fields of config.json that have only one supported value.
        sequence_head: names of the head of sequence classification; None if the export does not know the head.
    """

    input: TokenInput | PatchInput
    tensor_prefix: str
    size_fields: Mapping[str, str]
    activation_field: str
    module_names: Mapping[str, str]
    layer_prefix: str
    layer_module_names: Mapping[str, str]
    ignored_prefixes: tuple[str, ...]
    boolean_fields: Mapping[str, str] = field(default_factory=dict)
    fixed_fields: Mapping[str, Any] = field(default_factory=dict)
    default_pooling: Pooling = Pooling.MEAN
    norm_eps: float | None = None
    default_norm_eps: float = 1e-12
    required_fields: Mapping[str, object] = field(default_factory=dict)
    shared_module_names: Mapping[str, str] = field(default_factory=dict)
    sequence_head: SequenceHead | None = None

    def tensor_name(self, name: str) -> str:
        """Return the checkpoint's name for a tensor of `Encoder.state_dict()`."""
        module, _, kind = name.rpartition(".")
        if module.startswith("layers."):
            _, number, part = module.split(".", 2)
            if part in self.shared_module_names:
                return f"{self.shared_module_names[part]}.{kind}"
            return f"{self.layer_prefix}.{number}.{self.layer_module_names[part]}.{kind}"
        return f"{self.module_names[module]}.{kind}"


_BERT = Family(
    input=TokenInput(),
    tensor_prefix="bert.",
    size_fields={
        "d_model": "hidden_size",
        "heads": "num_attention_heads",
        "layers": "num_hidden_layers",
        "d_ff": "intermediate_size",
    },
    activation_field="hidden_act",
    module_names={
        "embedding.tokens": "embeddings.word_embeddings",
        "embedding.types": "embeddings.token_type_embeddings",
        "embedding.positions.table": "embeddings.position_embeddings",
        "embedding.norm": "embeddings.LayerNorm",
    },
    layer_prefix="encoder.layer",
    layer_module_names={
        "attention.query": "attention.self.query",
        "attention.key": "attention.self.key",
        "attention.value": "attention.self.value",
        "attention.output": "attention.output.dense",
        "attention_norm": "attention.output.LayerNorm",
        "feed_forward.up": "intermediate.dense",
        "feed_forward.down": "output.dense",
        "feed_forward_norm": "output.LayerNorm",
    },
    ignored_prefixes=("embeddings.position_ids", "pooler.", "cls."),
    sequence_head=SequenceHead("classifier", "pooler.dense", HeadActivation.TANH),
)
_ROBERTA_HEAD = SequenceHead("classifier.out_proj", "classifier.dense", HeadActivation.TANH)
_ROBERTA = replace(
    _BERT,
    input=TokenInput(positions_follow_padding=True),
    tensor_prefix="roberta.",
    ignored_prefixes=("embeddings.position_ids", "pooler.", "lm_head."),
    sequence_head=_ROBERTA_HEAD,
)
_DATA2VEC = replace(_ROBERTA, tensor_prefix="data2vec_text.")
_XLM_ROBERTA_XL = replace(
    _ROBERTA,
    module_names={
        "embedding.tokens": "embeddings.word_embeddings",
        "embedding.positions.table": "embeddings.position_embeddings",
        "norm": "encoder.LayerNorm",
    },
    layer_module_names={
        **_BERT.layer_module_names,
        "attention_norm": "attention.self_attn_layer_norm",
        "feed_forward_norm": "LayerNorm",
    },
    fixed_fields={"norm": Norm.PRE, "final_norm": True, "embedding_norm": False},
    default_norm_eps=1e-5,
)
_ERNIE = replace(_BERT, tensor_prefix="ernie.", required_fields={"use_task_id": False})
_ELECTRA = replace(
    _BERT,
    tensor_prefix="electra.",
    size_fields={**_BERT.size_fields, "embedding_width": "embedding_size"},
    module_names={**_BERT.module_names, "embedding.projection": "embeddings_project"},
    ignored_prefixes=("embeddings.position_ids", "discriminator_predictions.", "generator_"),
    sequence_head=replace(_ROBERTA_HEAD, activation=HeadActivation.GELU),
)
_ROFORMER = replace(
    _ELECTRA,
    input=RotaryTokenInput(),
    tensor_prefix="roformer.",
    module_names={name: module for name, module in _ELECTRA.module_names.items() if "positions" not in name},
    ignored_prefixes=("pooler.", "cls."),
    fixed_fields={"positions": Positions.ROTARY},
    required_fields={"rotary_value": False},
    sequence_head=replace(_ROBERTA_HEAD, activation=None),
)
_ALBERT = replace(
    _ELECTRA,
    tensor_prefix="albert.",
    module_names={**_BERT.module_names, "embedding.projection": "encoder.embedding_hidden_mapping_in"},
    shared_module_names={
        part: f"encoder.albert_layer_groups.0.albert_layers.0.{module}"
        for part, module in (
            ("attention.query", "attention.query"),
            ("attention.key", "attention.key"),
            ("attention.value", "attention.value"),
            ("attention.output", "attention.dense"),
            ("attention_norm", "attention.LayerNorm"),
            ("feed_forward.up", "ffn"),
            ("feed_forward.down", "ffn_output"),
            ("feed_forward_norm", "full_layer_layer_norm"),
        )
    },
    ignored_prefixes=("embeddings.position_ids", "pooler.", "predictions.", "sop_classifier."),
    required_fields={"num_hidden_groups": 1, "inner_group_num": 1},
    sequence_head=SequenceHead("classifier", "pooler", HeadActivation.TANH),
)
_MPNET = replace(
    _BERT,
    input=BucketedTokenInput(positions_follow_padding=True, has_types=False),
    tensor_prefix="mpnet.",
    layer_module_names={
        **_BERT.layer_module_names,
        "attention.query": "attention.attn.q",
        "attention.key": "attention.attn.k",
        "attention.value": "attention.attn.v",
        "attention.output": "attention.attn.o",
        "attention_norm": "attention.LayerNorm",
    },
    shared_module_names={"attention.distances": "encoder.relative_attention_bias"},
    ignored_prefixes=("embeddings.position_ids", "pooler.", "lm_head."),
    sequence_head=_ROBERTA_HEAD,
    fixed_fields={"distance_bias": True},
    # transformers ignores both fields, and uses these values.
    required_fields={"relative_attention_num_buckets": 32, "pad_token_id": 1},
)
_DISTILBERT = Family(
    input=TokenInput(has_types=False),
    tensor_prefix="distilbert.",
    size_fields={"d_model": "dim", "heads": "n_heads", "layers": "n_layers", "d_ff": "hidden_dim"},
    activation_field="activation",
    module_names=_BERT.module_names,
    layer_prefix="transformer.layer",
    layer_module_names={
        "attention.query": "attention.q_lin",
        "attention.key": "attention.k_lin",
        "attention.value": "attention.v_lin",
        "attention.output": "attention.out_lin",
        "attention_norm": "sa_layer_norm",
        "feed_forward.up": "ffn.lin1",
        "feed_forward.down": "ffn.lin2",
        "feed_forward_norm": "output_layer_norm",
    },
    ignored_prefixes=("vocab_transform.", "vocab_layer_norm.", "vocab_projector."),
    norm_eps=1e-12,
    sequence_head=SequenceHead("classifier", "pre_classifier", HeadActivation.RELU),
)
_VIT = Family(
    input=PatchInput(),
    tensor_prefix="vit.",
    size_fields=_BERT.size_fields,
    activation_field="hidden_act",
    module_names={
        "embedding.tokens": "embeddings.patch_embeddings.projection",
        "embedding.positions.table": "embeddings.position_embeddings",
        "norm": "layernorm",
    },
    layer_prefix="encoder.layer",
    layer_module_names={
        "attention.query": "attention.attention.query",
        "attention.key": "attention.attention.key",
        "attention.value": "attention.attention.value",
        "attention.output": "attention.output.dense",
        "attention_norm": "layernorm_before",
        "feed_forward.up": "intermediate.dense",
        "feed_forward.down": "output.dense",
        "feed_forward_norm": "layernorm_after",
    },
    ignored_prefixes=("embeddings.mask_token", "pooler.", "decoder."),
    boolean_fields={"query_bias": "qkv_bias", "key_bias": "qkv_bias", "value_bias": "qkv_bias"},
    fixed_fields={
        "norm": Norm.PRE,
        "final_norm": True,
        "embedding_norm": False,
        "fixed_length": True,
        "class_row": True,
    },
    default_pooling=Pooling.CLS,
    sequence_head=SequenceHead("classifier"),
)

# Families by `model_type` in config.json.
FAMILIES: dict[str, Family] = {
    "bert": _BERT,
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "xlm-roberta-xl": _XLM_ROBERTA_XL,
    "camembert": _ROBERTA,
    "data2vec-text": _DATA2VEC,
    "ernie": _ERNIE,
    "electra": _ELECTRA,
    "mpnet": _MPNET,
    "albert": _ALBERT,
    "roformer": _ROFORMER,
    "distilbert": _DISTILBERT,
    "vit": _VIT,
}

# Activations by their names in `transformers`.
ACTIVATIONS: dict[str, Activation] = {
    "gelu": Activation.GELU,
    "gelu_new": Activation.GELU_TANH,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "relu": Activation.RELU,
    "silu": Activation.SILU,
    "swish": Activation.SILU,
}
