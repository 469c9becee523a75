"""The families of Nomic BERT, GTE and jina-embeddings-v3: BERT with rotary positions and fused projections."""

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from typing_extensions import override

from headwaiter_export.checkpoints.families.family import NO_BIASES, USUAL_SIZES, Family, SequenceHead
from headwaiter_export.checkpoints.families.rotary import QKV, ROTARY_FIELDS, SplitHalfInput
from headwaiter_export.checkpoints.hub_layouts import gte_json, jina_json, new_json, nomic_experts_json, nomic_json
from headwaiter_export.checkpoints.json_files import CheckpointJson
from headwaiter_export.checkpoints.weights import take_tensor
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.config.feed_forward_experts import FeedForwardExpertsConfig
from headwaiter_export.config.head import HeadActivation

NOMIC_BERT = Family(
    input=SplitHalfInput(theta=1000.0, fused={"attn.Wqkv": QKV}),
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
    fixed_fields={**NO_BIASES, **ROTARY_FIELDS, "gated": True},
    sequence_head=SequenceHead("classifier", "pooler.dense", HeadActivation.TANH),
    custom_classes="NomicBert",
    translate=nomic_json,
)


@dataclass(frozen=True)
class ExpertsInput(SplitHalfInput):
    """Token ids of Nomic BERT whose feed-forward blocks have experts in every n-th layer, from layer 1."""

    @override
    def sizes(self, config_json: CheckpointJson) -> dict[str, Any]:
        return {**super().sizes(config_json), "feed_forward_experts": _experts(config_json)}

    @override
    def fold_tensors(self, tensors: dict[str, Tensor], config_json: CheckpointJson, config: EncoderConfig) -> None:
        """Give the weights of experts the names and the shapes of the linear layers in other layers."""
        super().fold_tensors(tensors, config_json, config)
        experts = config.feed_forward_experts
        for layer in experts.layers if experts else ():
            assert experts is not None
            block = f"encoder.layers.{layer}.mlp"
            shape = experts.experts * config.d_ff, config.d_model
            up, down = (take_tensor(tensors, f"{block}.experts.mlp.{name}", shape) for name in ("w1", "w2"))
            tensors[f"{block}.fc1.weight"], tensors[f"{block}.fc2.weight"] = up, down.T
            tensors[f"{block}.fc2.bias"] = take_tensor(tensors, f"{block}.experts.bias", (config.d_model,))


def _experts(config_json: CheckpointJson) -> FeedForwardExpertsConfig | None:
    every = config_json.size("moe_every_n_layers", least=0)
    layers = tuple(i for i in range(config_json.size("num_hidden_layers")) if every and i % every == 1)
    if not layers:
        return None
    return FeedForwardExpertsConfig(config_json.size("num_experts"), config_json.size("moe_top_k"), layers)


NOMIC_EXPERTS = replace(
    NOMIC_BERT,
    input=ExpertsInput(theta=10_000.0, fused={"attn.Wqkv": QKV}),
    layer_module_names={
        **NOMIC_BERT.layer_module_names,
        "feed_forward.up": "mlp.fc1",
        "feed_forward.router": "mlp.router.layer",
    },
    fixed_fields=ROTARY_FIELDS,
    sequence_head=None,
    translate=nomic_experts_json,
)
_GTE = replace(
    NOMIC_BERT,
    custom_classes="",
    translate=lambda config_json: config_json,
    input=SplitHalfInput(theta=160_000.0, fused={"attention.qkv_proj": QKV, "mlp.up_gate_proj": ("up", "gate")}),
    tensor_prefix="gte.",
    module_names={**NOMIC_BERT.module_names, "embedding.norm": "embeddings.LayerNorm"},
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
    fixed_fields={**ROTARY_FIELDS, "gated": True, "up_bias": False},
)
GTE_OR_ITS_CODE = replace(_GTE, outer_prefix="new.", custom_classes="Gte", translate=gte_json)
NEW = replace(GTE_OR_ITS_CODE, custom_classes="New", config_type="gte", translate=new_json)
JINA_V3 = replace(
    _GTE,
    input=SplitHalfInput(theta=20_000.0, fused={"mixer.Wqkv": QKV}),
    tensor_prefix="roberta.",
    module_names=NOMIC_BERT.module_names,
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
    fixed_fields=ROTARY_FIELDS,
    sequence_head=SequenceHead("classifier.out_proj", "classifier.dense", HeadActivation.TANH),
)
# The code of jina-embeddings-v3, whose model type is that of XLM-RoBERTa.
JINA_V3_CODE = replace(
    JINA_V3,
    custom_classes="XLMRoberta",
    config_type="jina_embeddings_v3",
    translate=jina_json,
    sequence_head=None,
    has_adapters=True,
)
