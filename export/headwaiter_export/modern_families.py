"""The families of checkpoints with rotary positions and gated feed-forward blocks."""

from dataclasses import replace
from typing import Any

from headwaiter_export.choices import Norm, Positions
from headwaiter_export.family import NO_BIASES, USUAL_SIZES, Family, SequenceHead
from headwaiter_export.head_config import HeadActivation
from headwaiter_export.hub_layouts import gte_json, new_json, nomic_json
from headwaiter_export.rotary_inputs import ModernBertInput, SplitHalfInput

_ROTARY: dict[str, Any] = {"positions": Positions.ROTARY, "rotary_float32": True}
_QKV = ("query", "key", "value")

_MODERNBERT = Family(
    input=ModernBertInput(
        has_types=False,
        theta=160_000.0,
        local_theta=10_000.0,
        words="embeddings.tok_embeddings.weight",
        fused={"attn.Wqkv": _QKV, "mlp.Wi": ("gate", "up")},
    ),
    tensor_prefix="model.",
    size_fields=USUAL_SIZES,
    activation_field="hidden_activation",
    module_names={
        "embedding.tokens": "embeddings.tok_embeddings",
        "embedding.norm": "embeddings.norm",
        "norm": "final_norm",
    },
    layer_prefix="layers",
    layer_module_names={
        "attention.query": "attn.Wqkv.query",
        "attention.key": "attn.Wqkv.key",
        "attention.value": "attn.Wqkv.value",
        "attention.output": "attn.Wo",
        "attention_norm": "attn_norm",
        "feed_forward.gate": "mlp.Wi.gate",
        "feed_forward.up": "mlp.Wi.up",
        "feed_forward.down": "mlp.Wo",
        "feed_forward_norm": "mlp_norm",
    },
    ignored_prefixes=("head.", "decoder."),
    boolean_fields={
        **dict.fromkeys(("query_bias", "key_bias", "value_bias", "output_bias"), "attention_bias"),
        **dict.fromkeys(("up_bias", "down_bias"), "mlp_bias"),
    },
    fixed_fields={
        **NO_BIASES,
        **_ROTARY,
        "norm": Norm.PRE,
        "first_norm": False,
        "final_norm": True,
        "gated": True,
    },
    norm_eps_field="norm_eps",
    default_norm_eps=1e-5,
    default_values={"classifier_activation": "gelu", "classifier_pooling": "cls"},
    sequence_head=SequenceHead(
        "classifier",
        "head.dense",
        activation_field="classifier_activation",
        norm="head.norm",
        pooling_field="classifier_pooling",
        scores_tokens=True,
    ),
    # In transformers, `sliding_window` overrides `local_attention`.
    required_fields={"sliding_window": None},
)
_NOMIC_BERT = Family(
    input=SplitHalfInput(theta=1000.0, fused={"attn.Wqkv": _QKV}),
    tensor_prefix="nomic_bert.",
    size_fields=USUAL_SIZES,
    activation_field="hidden_act",
    module_names={
        "embedding.tokens": "embeddings.word_embeddings",
        "embedding.types": "embeddings.token_type_embeddings",
        "embedding.norm": "emb_ln",
    },
    layer_prefix="encoder.layers",
    layer_module_names={
        "attention.query": "attn.Wqkv.query",
        "attention.key": "attn.Wqkv.key",
        "attention.value": "attn.Wqkv.value",
        "attention.output": "attn.out_proj",
        "attention_norm": "norm1",
        "feed_forward.up": "mlp.fc11",
        "feed_forward.gate": "mlp.fc12",
        "feed_forward.down": "mlp.fc2",
        "feed_forward_norm": "norm2",
    },
    ignored_prefixes=("pooler.", "cls."),
    fixed_fields={**NO_BIASES, **_ROTARY, "gated": True},
    sequence_head=SequenceHead("classifier", "pooler.dense", HeadActivation.TANH),
    custom_classes="NomicBert",
    translate=nomic_json,
)
_GTE = replace(
    _NOMIC_BERT,
    custom_classes="",
    translate=lambda config_json: config_json,
    input=SplitHalfInput(theta=160_000.0, fused={"attention.qkv_proj": _QKV, "mlp.up_gate_proj": ("up", "gate")}),
    tensor_prefix="gte.",
    module_names={**_NOMIC_BERT.module_names, "embedding.norm": "embeddings.LayerNorm"},
    layer_prefix="encoder.layer",
    layer_module_names={
        "attention.query": "attention.qkv_proj.query",
        "attention.key": "attention.qkv_proj.key",
        "attention.value": "attention.qkv_proj.value",
        "attention.output": "attention.o_proj",
        "attention_norm": "attn_ln",
        "feed_forward.up": "mlp.up_gate_proj.up",
        "feed_forward.gate": "mlp.up_gate_proj.gate",
        "feed_forward.down": "mlp.down_proj",
        "feed_forward_norm": "mlp_ln",
    },
    ignored_prefixes=("pooler.", "lm_head."),
    fixed_fields={**_ROTARY, "gated": True, "up_bias": False},
)
_GTE_OR_ITS_CODE = replace(_GTE, outer_prefix="new.", custom_classes="Gte", translate=gte_json)
_NEW = replace(_GTE_OR_ITS_CODE, custom_classes="New", translate=new_json)
_JINA_V3 = replace(
    _GTE,
    input=SplitHalfInput(theta=20_000.0, fused={"mixer.Wqkv": _QKV}),
    tensor_prefix="roberta.",
    module_names=_NOMIC_BERT.module_names,
    layer_prefix="encoder.layers",
    layer_module_names={
        "attention.query": "mixer.Wqkv.query",
        "attention.key": "mixer.Wqkv.key",
        "attention.value": "mixer.Wqkv.value",
        "attention.output": "mixer.out_proj",
        "attention_norm": "norm1",
        "feed_forward.up": "mlp.fc1",
        "feed_forward.down": "mlp.fc2",
        "feed_forward_norm": "norm2",
    },
    fixed_fields=_ROTARY,
    default_norm_eps=1e-5,
    sequence_head=SequenceHead("classifier.out_proj", "classifier.dense", HeadActivation.TANH),
)

MODERN_FAMILIES: dict[str, Family] = {
    "modernbert": _MODERNBERT,
    "nomic_bert": _NOMIC_BERT,
    "gte": _GTE_OR_ITS_CODE,
    "new": _NEW,
    "jina_embeddings_v3": _JINA_V3,
}
