"""The families whose layers are those of decoders, causal or bidirectional: Llama, Mistral, Qwen and EuroBERT."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from headwaiter_export.checkpoints.families.family import NO_BIASES, USUAL_SIZES, Family, SequenceHead
from headwaiter_export.checkpoints.families.rotary import SplitHalfInput, pair_neighbours, read_layer_types
from headwaiter_export.checkpoints.json_files import CheckpointError, CheckpointJson
from headwaiter_export.config.choices import Mask, Norm, Pooling, Positions
from headwaiter_export.config.encoder import EncoderConfig


@dataclass(frozen=True, kw_only=True)
class DecoderInput(SplitHalfInput):
    """Token ids without types; each head of keys and values may serve several heads of queries.

    Attributes:
        causal: whether a token attends only to itself and the tokens before it, unless config.json says otherwise.
    """

    has_types: bool = False
    causal: bool = True

    @override
    def sizes(self, config_json: CheckpointJson) -> dict[str, Any]:
        sizes = super().sizes(config_json)
        _key_heads(config_json)
        causal = self._is_causal(config_json)
        sizes["mask"] = Mask.CAUSAL if causal else Mask.NONE
        sizes["local_layers"] = self._local_layers(config_json)
        if sizes["local_layers"]:
            sizes["window"] = self._window(config_json, causal=causal)
        return sizes

    def _is_causal(self, config_json: CheckpointJson) -> bool:
        return config_json.flag("is_causal", default=self.causal)

    def _window(self, config_json: CheckpointJson, *, causal: bool) -> int:
        """Return the largest distance in local layers; in causal layers, transformers counts the token itself."""
        return config_json.size("sliding_window") - causal

    def _local_layers(self, _: CheckpointJson) -> list[int]:
        """Return the numbers of the layers that attend locally."""
        return []

    @override
    def fold_tensors(self, tensors: dict[str, Tensor], config_json: CheckpointJson, config: EncoderConfig) -> None:
        """Repeat the heads of keys and values for their queries, and pair neighbours in queries, keys and their norms.

        Grouped-query attention (https://arxiv.org/abs/2305.13245) with repeated weights is multi-head attention.
        """
        key_heads = _key_heads(config_json)
        heads = {"q_proj": config.heads, "k_proj": key_heads, "v_proj": key_heads, "q_norm": 1, "k_norm": 1}
        for name, tensor in list(tensors.items()):
            part = name.rpartition(".")[0].rpartition(".self_attn.")[2]
            if name.endswith(".rotary_emb.inv_freq"):
                # Older releases of transformers stored the frequencies, which config.json describes.
                del tensors[name]
            if part not in heads:
                continue
            rows = heads[part] * config.head_dim
            if tensor.shape[:1] != (rows,):
                raise CheckpointError(
                    f"tensor {name} has shape {list(tensor.shape)}: config.json requires {rows} rows, for "
                    f"{heads[part]} heads of {config.head_dim}"
                )
            index = torch.arange(rows)
            if part != "v_proj":
                index = pair_neighbours(index, heads[part])
            if part in ("k_proj", "v_proj"):
                index = index.view(key_heads, -1).repeat_interleave(config.heads // key_heads, 0).flatten()
            tensors[name] = tensor[index]


def _key_heads(config_json: CheckpointJson) -> int:
    """Return the number of heads of keys and values in a layer of the checkpoint."""
    heads = config_json.size("num_attention_heads")
    if config_json.values.get("num_key_value_heads") is None:
        return heads
    key_heads = config_json.size("num_key_value_heads")
    if heads % key_heads:
        raise config_json.error("num_key_value_heads", f"it must divide num_attention_heads, {heads}")
    return key_heads


@dataclass(frozen=True, kw_only=True)
class MistralInput(DecoderInput):
    """The input of a decoder in which all layers attend locally, unless config.json says otherwise."""

    @override
    def _local_layers(self, config_json: CheckpointJson) -> list[int]:
        if config_json.values.get("sliding_window") is None:
            return []
        return list(range(config_json.size("num_hidden_layers")))


@dataclass(frozen=True, kw_only=True)
class QwenInput(DecoderInput):
    """The input of a decoder in which config.json says which layers attend locally."""

    @override
    def _local_layers(self, config_json: CheckpointJson) -> list[int]:
        layers = config_json.size("num_hidden_layers")
        has_window = config_json.boolean("use_sliding_window") and config_json.values["sliding_window"] is not None
        if config_json.values.get("layer_types") is None:
            first = config_json.size("max_window_layers", least=0)
            return list(range(first, layers)) if has_window else []
        local_layers = read_layer_types(config_json)
        if local_layers and not has_window:
            raise config_json.error("layer_types", "layers of sliding_attention need use_sliding_window and a window")
        return local_layers


# The head that transformers gives all decoders: it scores the last token, padding aside, which attends to all others.
_HEAD = SequenceHead(
    "score",
    poolings=(Pooling.LAST,),
    bias=False,
    bias_field="token_classification_bias",
    scores_tokens=True,
    finds_answers=False,
    skips_padding=True,
)
LLAMA = Family(
    input=DecoderInput(theta=10_000.0),
    tensor_prefix="model.",
    size_fields=USUAL_SIZES,
    activation_field="hidden_act",
    module_names={"embedding.tokens": "embed_tokens", "norm": "norm"},
    layer_prefix="layers",
    layer_module_names={
        "attention.query": "self_attn.q_proj",
        "attention.key": "self_attn.k_proj",
        "attention.value": "self_attn.v_proj",
        "attention.query_norm": "self_attn.q_norm",
        "attention.key_norm": "self_attn.k_norm",
        "attention.output": "self_attn.o_proj",
        "attention_norm": "input_layernorm",
        "feed_forward.gate": "mlp.gate_proj",
        "feed_forward.up": "mlp.up_proj",
        "feed_forward.down": "mlp.down_proj",
        "feed_forward_norm": "post_attention_layernorm",
    },
    ignored_prefixes=("lm_head.",),
    boolean_fields={
        **dict.fromkeys(("query_bias", "key_bias", "value_bias", "output_bias"), "attention_bias"),
        **dict.fromkeys(("up_bias", "down_bias"), "mlp_bias"),
    },
    fixed_fields={
        "positions": Positions.ROTARY,
        "rotary_float32": True,
        "norm": Norm.PRE,
        "final_norm": True,
        "rms_norm": True,
        "embedding_norm": False,
        "gated": True,
    },
    norm_eps_field="rms_norm_eps",
    sequence_head=_HEAD,
    is_causal=(True, False),
)
MISTRAL = replace(
    LLAMA,
    input=MistralInput(theta=10_000.0),
    boolean_fields={},
    fixed_fields={**LLAMA.fixed_fields, **NO_BIASES},
    required_fields={"layer_types": None},
)
QWEN3 = replace(
    LLAMA,
    input=QwenInput(theta=10_000.0),
    boolean_fields={name: field for name, field in LLAMA.boolean_fields.items() if field == "attention_bias"},
    fixed_fields={**LLAMA.fixed_fields, "up_bias": False, "down_bias": False, "query_key_norm": True},
)
QWEN2 = replace(
    QWEN3,
    boolean_fields={},
    fixed_fields={**LLAMA.fixed_fields, **NO_BIASES, "query_bias": True, "key_bias": True, "value_bias": True},
)
EUROBERT = replace(
    LLAMA,
    input=DecoderInput(theta=10_000.0, causal=False),
    sequence_head=None,
    # With is_causal: true, transformers attends to later tokens if a batch is padded or computed by "eager", and
    # otherwise not: no encoder equals all of these results.
    is_causal=(False,),
)
