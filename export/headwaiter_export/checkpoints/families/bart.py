"""The family of BART (https://arxiv.org/abs/1910.13461): an encoder, and a decoder over the same sequence."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from typing_extensions import override

from headwaiter_export.checkpoints.families.family import (
    DECODER_HEAD,
    Family,
    TensorNames,
    TokenInput,
    keep_shared_words,
)
from headwaiter_export.checkpoints.json_files import CheckpointJson
from headwaiter_export.checkpoints.weights import take_tensor
from headwaiter_export.config.choices import Norm
from headwaiter_export.config.decoder import DecoderConfig
from headwaiter_export.config.encoder import EncoderConfig

_SHARED = "shared.weight"
_STACKS = ("encoder", "decoder")
# Rows of the tables of positions that no token has.
_UNUSED_POSITIONS = 2


@dataclass(frozen=True)
class BartInput(TokenInput):
    """Token ids of an encoder and, one place later, of its decoder."""

    @override
    def sizes(self, config_json: CheckpointJson) -> dict[str, Any]:
        heads = config_json.size("encoder_attention_heads")
        if config_json.size("decoder_attention_heads") != heads:
            raise config_json.error("decoder_attention_heads", f"it must be encoder_attention_heads, {heads}")
        return {
            "vocabulary_size": config_json.size("vocab_size"),
            "max_tokens": config_json.size("max_position_embeddings"),
            "decoder": DecoderConfig(
                layers=config_json.size("decoder_layers"),
                d_ff=config_json.size("decoder_ffn_dim"),
                start_id=config_json.size("decoder_start_token_id", least=0),
            ),
        }

    @override
    def fold_tensors(self, tensors: dict[str, Tensor], config_json: CheckpointJson, config: EncoderConfig) -> None:
        """Remove the unused rows of the tables of positions, and scale the vectors of tokens if the model does."""
        keep_shared_words(tensors, _SHARED, [f"{stack}.embed_tokens.weight" for stack in _STACKS])
        for stack in _STACKS:
            name, rows = f"{stack}.embed_positions.weight", _UNUSED_POSITIONS + config.max_tokens
            tensors[name] = take_tensor(tensors, name, (rows, config.d_model))[_UNUSED_POSITIONS:]
        if config_json.flag("scale_embedding", default=False):
            words = take_tensor(tensors, _SHARED, (config.vocabulary_size, config.d_model))
            tensors[_SHARED] = words * math.sqrt(config.d_model)


_ATTENTION = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
_LAYER: Mapping[str, str] = {
    **{f"attention.{name}": f"self_attn.{module}" for name, module in _ATTENTION.items()},
    "attention_norm": "self_attn_layer_norm",
    "feed_forward.up": "fc1",
    "feed_forward.down": "fc2",
    "feed_forward_norm": "final_layer_norm",
}
BART = Family(
    input=BartInput(has_types=False),
    tensor_prefix="model.",
    size_fields={
        "d_model": "d_model",
        "heads": "encoder_attention_heads",
        "layers": "encoder_layers",
        "d_ff": "encoder_ffn_dim",
    },
    activation_field="activation_function",
    module_names={
        "embedding.tokens": "shared",
        "embedding.positions.table": "encoder.embed_positions",
        "embedding.norm": "encoder.layernorm_embedding",
    },
    layer_prefix="encoder.layers",
    layer_module_names=_LAYER,
    decoder_names=TensorNames(
        module_names={
            "embedding.positions.table": "decoder.embed_positions",
            "embedding.norm": "decoder.layernorm_embedding",
        },
        layer_prefix="decoder.layers",
        layer_module_names={
            **_LAYER,
            **{f"cross_attention.{name}": f"encoder_attn.{module}" for name, module in _ATTENTION.items()},
            "cross_attention_norm": "encoder_attn_layer_norm",
        },
    ),
    ignored_prefixes=("lm_head.", "final_logits_bias", "encoder.version", "decoder.version"),
    required_fields={"tie_word_embeddings": True, "is_encoder_decoder": True},
    # transformers would apply it to all attention layers, those to the encoder included.
    is_causal=(),
    fixed_fields={"norm": Norm.POST},
    norm_eps=1e-5,
    has_default_sizes=True,
    default_values={"num_labels": 3},
    sequence_head=DECODER_HEAD,
    end_id_field="eos_token_id",
)
