"""T5 (https://arxiv.org/abs/1910.10683), mT5 and UMT5: the encoder alone, or with a decoder."""

import math
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from typing_extensions import override

from headwaiter_export.checkpoints.activations import ACTIVATIONS
from headwaiter_export.checkpoints.families.distance_buckets import fold_buckets
from headwaiter_export.checkpoints.families.family import (
    DECODER_HEAD,
    Family,
    SequenceHead,
    TensorNames,
    TokenInput,
    keep_shared_words,
)
from headwaiter_export.checkpoints.json_files import CheckpointJson
from headwaiter_export.config.choices import Activation, DecoderInput, Norm, Positions
from headwaiter_export.config.decoder import DecoderConfig
from headwaiter_export.config.encoder import EncoderConfig

_SHARED = "shared.weight"
_LAYER_BIAS = "layer.0.SelfAttention.relative_attention_bias"
_BIAS = "{}.block.{}." + _LAYER_BIAS
_GATED = "gated-"
# transformers reads gelu of a gated block as its approximation.
_ACTIVATIONS = {
    **ACTIVATIONS,
    **{f"{_GATED}{name}": activation for name, activation in ACTIVATIONS.items()},
    f"{_GATED}gelu": Activation.GELU_TANH,
}


@dataclass(frozen=True)
class T5Input(TokenInput):
    """Token ids of an encoder that adds a number to each score, one for each bucket of distances.

    Attributes:
        has_decoder: whether there is a decoder.
        own_distances: whether each layer has its own numbers; otherwise all layers have those of the first.
        decoder_input: what the rows of the decoder stand for.
    """

    has_decoder: bool = False
    decoder_input: DecoderInput = DecoderInput.TEXT
    own_distances: bool = False

    @override
    def sizes(self, config_json: CheckpointJson) -> dict[str, Any]:
        name = config_json.values["feed_forward_proj"]
        activation = config_json.choice("feed_forward_proj", _ACTIVATIONS)
        gated = name.startswith(_GATED)
        # transformers derives these fields from feed_forward_proj, but their values in config.json have priority.
        if "dense_act_fn" in config_json.values and config_json.choice("dense_act_fn", ACTIVATIONS) != activation:
            raise config_json.error("dense_act_fn", f"it must be the activation of feed_forward_proj, {name}")
        if config_json.flag("is_gated_act", default=gated) != gated:
            raise config_json.error("is_gated_act", f"it must fit feed_forward_proj, {name}")
        buckets = config_json.size("relative_attention_num_buckets", least=4)
        # Each of these distances has a bucket of its own; the decoder has no buckets for later tokens.
        exact = buckets // (2 if self.has_decoder else 4)
        if config_json.size("relative_attention_max_distance") <= exact:
            raise config_json.error("relative_attention_max_distance", f"it must be more than {exact}")
        return {
            "decoder": self._decoder(config_json) if self.has_decoder else None,
            "vocabulary_size": config_json.size("vocab_size"),
            "max_tokens": config_json.size("n_positions"),
            "gated": gated,
        }

    def _decoder(self, config_json: CheckpointJson) -> DecoderConfig:
        layers = "num_decoder_layers" if config_json.values.get("num_decoder_layers") is not None else "num_layers"
        return DecoderConfig(
            layers=config_json.size(layers),
            d_ff=config_json.size("d_ff"),
            start_id=config_json.size("decoder_start_token_id", least=0),
            input=self.decoder_input,
        )

    @override
    def fold_tensors(self, tensors: dict[str, Tensor], config_json: CheckpointJson, config: EncoderConfig) -> None:
        """Give each distance its number, and multiply the queries by √head_dim: T5 does not scale its scores."""
        stacks = ("encoder", "decoder") if self.has_decoder else ("encoder",)
        keep_shared_words(tensors, _SHARED, [f"{stack}.embed_tokens.weight" for stack in stacks])
        buckets, farthest = (config_json.size(f"relative_attention_{name}") for name in ("num_buckets", "max_distance"))
        for stack in stacks:
            layers = config.decoder.layers if config.decoder and stack == "decoder" else config.layers
            for layer in range(layers if self.own_distances else 1):
                fold_buckets(tensors, _BIAS.format(stack, layer), config, buckets, farthest, causal=stack == "decoder")
        for name, tensor in list(tensors.items()):
            if name.startswith(stacks) and name.endswith("Attention.q.weight"):
                tensors[name] = tensor.float() * math.sqrt(config.head_dim)
            elif name.endswith(".DenseReluDense.wi.weight") and not config.gated:
                tensors[name.replace(".wi.", ".wi_1.")] = tensors.pop(name)


_SELF_ATTENTION = {
    "attention.query": "layer.0.SelfAttention.q",
    "attention.key": "layer.0.SelfAttention.k",
    "attention.value": "layer.0.SelfAttention.v",
    "attention.output": "layer.0.SelfAttention.o",
    "attention_norm": "layer.0.layer_norm",
}
T5 = Family(
    input=T5Input(has_types=False),
    tensor_prefix="",
    size_fields={
        "d_model": "d_model",
        "heads": "num_heads",
        "head_dim": "d_kv",
        "layers": "num_layers",
        "d_ff": "d_ff",
    },
    activation_field="feed_forward_proj",
    activations=_ACTIVATIONS,
    module_names={"embedding.tokens": "shared", "norm": "encoder.final_layer_norm"},
    layer_prefix="encoder.block",
    layer_module_names={
        **_SELF_ATTENTION,
        "feed_forward.gate": "layer.1.DenseReluDense.wi_0",
        "feed_forward.up": "layer.1.DenseReluDense.wi_1",
        "feed_forward.down": "layer.1.DenseReluDense.wo",
        "feed_forward_norm": "layer.1.layer_norm",
    },
    shared_module_names={"attention.distances": _BIAS.format("encoder", 0)},
    ignored_prefixes=("decoder.", "lm_head."),
    fixed_fields={
        **dict.fromkeys(("query_bias", "key_bias", "value_bias", "output_bias", "up_bias", "down_bias"), False),
        "positions": Positions.NONE,
        "distance_bias": True,
        "norm": Norm.PRE,
        "final_norm": True,
        "rms_norm": True,
        "embedding_norm": False,
    },
    norm_eps_field="layer_norm_epsilon",
    # The encoder has no maximum: n_positions is the length of the training.
    default_values={"d_kv": 64, "n_positions": 512},
)
UMT5 = replace(
    T5,
    input=T5Input(has_types=False, own_distances=True),
    layer_module_names={**T5.layer_module_names, "attention.distances": _LAYER_BIAS},
    shared_module_names={},
)
_DECODER_LAYER = {
    **_SELF_ATTENTION,
    "cross_attention.query": "layer.1.EncDecAttention.q",
    "cross_attention.key": "layer.1.EncDecAttention.k",
    "cross_attention.value": "layer.1.EncDecAttention.v",
    "cross_attention.output": "layer.1.EncDecAttention.o",
    "cross_attention_norm": "layer.1.layer_norm",
    "feed_forward.gate": "layer.2.DenseReluDense.wi_0",
    "feed_forward.up": "layer.2.DenseReluDense.wi_1",
    "feed_forward.down": "layer.2.DenseReluDense.wo",
    "feed_forward_norm": "layer.2.layer_norm",
}


def with_token_head(family: Family) -> Family:
    """Return the family of a …ForTokenClassification, an encoder without a decoder."""
    return replace(family, tensor_prefix="transformer.", sequence_head=SequenceHead("classifier"))


def with_sequence_head(family: Family) -> Family:
    """Return the family of a …ForSequenceClassification, whose head scores the last row of the decoder."""
    own = {"attention.distances": _LAYER_BIAS} if not family.shared_module_names else {}
    return replace(
        family,
        input=_with_decoder(family, DecoderInput.TEXT),
        tensor_prefix="transformer.",
        decoder_names=TensorNames(
            module_names={"norm": "decoder.final_layer_norm"},
            layer_prefix="decoder.block",
            layer_module_names={**_DECODER_LAYER, **own},
            shared_module_names={} if own else {"attention.distances": _BIAS.format("decoder", 0)},
        ),
        # Old checkpoints have a table of distances that transformers does not use.
        ignored_prefixes=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias",),
        required_fields={"is_encoder_decoder": True},
        is_causal=(),
        sequence_head=DECODER_HEAD,
        end_id_field="eos_token_id",
    )


def with_words(family: Family) -> Family:
    """Return the family of a …ForConditionalGeneration, whose decoder answers a question with its first word."""
    scored = with_sequence_head(family)
    return replace(
        scored,
        input=_with_decoder(family, DecoderInput.START),
        tensor_prefix="",
        ignored_prefixes=(*scored.ignored_prefixes, "lm_head."),
        sequence_head=SequenceHead("score", bias=False),
        end_id_field="",
    )


def _with_decoder(family: Family, decoder_input: DecoderInput) -> T5Input:
    assert isinstance(family.input, T5Input)
    return replace(family.input, has_decoder=True, decoder_input=decoder_input)
