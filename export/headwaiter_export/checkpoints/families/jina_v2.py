"""jina-embeddings-v2 (https://arxiv.org/abs/2310.19923), as its code computes it: BERT with linear biases and gates."""

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from typing_extensions import override

from headwaiter_export.checkpoints.families.bert import BERT
from headwaiter_export.checkpoints.families.family import TokenInput, with_only_type
from headwaiter_export.checkpoints.hub_layouts import jina_v2_json
from headwaiter_export.checkpoints.json_files import CheckpointJson
from headwaiter_export.checkpoints.weights import take_tensor
from headwaiter_export.config.choices import Positions
from headwaiter_export.config.encoder import EncoderConfig

_WORDS = "embeddings.word_embeddings.weight"


@dataclass(frozen=True)
class LinearBiasInput(TokenInput):
    """Token ids without a position table, of a model whose gates and inner rows come from one linear layer."""

    @override
    def sizes(self, config_json: CheckpointJson) -> dict[str, Any]:
        return {
            "vocabulary_size": config_json.size("vocab_size"),
            "max_tokens": config_json.size("max_position_embeddings"),
        }

    @override
    def fold_tensors(self, tensors: dict[str, Tensor], config_json: CheckpointJson, config: EncoderConfig) -> None:
        """Add the vector of the only token type to all others, and split the linear layers that gate."""
        words = take_tensor(tensors, _WORDS, (config.vocabulary_size, config.d_model))
        tensors[_WORDS] = with_only_type(words, tensors, config)
        for layer in range(config.layers):
            block = f"encoder.layer.{layer}.mlp"
            both = take_tensor(tensors, f"{block}.gated_layers.weight", (2 * config.d_ff, config.d_model))
            tensors[f"{block}.gate.weight"], tensors[f"{block}.up.weight"] = both.chunk(2)


JINA_V2_CODE = replace(
    BERT,
    input=LinearBiasInput(),
    layer_module_names={
        **BERT.layer_module_names,
        "feed_forward.gate": "mlp.gate",
        "feed_forward.up": "mlp.up",
        "feed_forward.down": "mlp.wo",
        "feed_forward_norm": "mlp.layernorm",
    },
    fixed_fields={"positions": Positions.ALIBI, "gated": True, "up_bias": False},
    sequence_head=None,
    vocabulary_head=None,
    custom_classes="JinaBert",
    translate=jina_v2_json,
)
