"""The family of ESM-2 and ESM-1b, encoders of proteins (https://doi.org/10.1126/science.ade2574)."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from headwaiter_export.checkpoints.families.bert import BERT_LAYER_MODULES
from headwaiter_export.checkpoints.families.family import USUAL_SIZES, Family, SequenceHead, TokenInput
from headwaiter_export.checkpoints.families.rotary import pair_neighbours
from headwaiter_export.checkpoints.json_files import CheckpointError, CheckpointJson
from headwaiter_export.checkpoints.weights import take_tensor
from headwaiter_export.config.choices import Activation, Norm, Positions
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.config.head import HeadActivation
from headwaiter_export.encoder.positions import rotary_frequencies

# In training, 80 % of the 15 % of tokens that were to be predicted were masked, and so 12 % of all tokens.
_UNMASKED_SHARE = 1 - 0.15 * 0.8
_WORDS = "embeddings.word_embeddings.weight"
_FREQUENCIES = "rotary_embeddings.inv_freq"


@dataclass(frozen=True)
class EsmInput(TokenInput):
    """Token ids with rotary or learned positions, of which the masked ones may have vectors of zeros."""

    @override
    def sizes(self, config_json: CheckpointJson) -> dict[str, Any]:
        # transformers fails without this field.
        config_json.size("pad_token_id", least=0)
        sizes = {**super().sizes(config_json), "embedding_norm": config_json.is_true("emb_layer_norm_before")}
        if config_json.is_true("token_dropout"):
            sizes["mask_id"] = config_json.size("mask_token_id", least=0)
        if not config_json.choice("position_embedding_type", {"absolute": False, "rotary": True}):
            return {**sizes, "positions": Positions.LEARNED}
        rotary = {"max_tokens": config_json.size("max_position_embeddings"), "pad_id": None}
        return {**sizes, **rotary, "rotary_theta": config_json.values.get("rope_theta", 10_000.0)}

    @override
    def fold_tensors(self, tensors: dict[str, Tensor], config_json: CheckpointJson, config: EncoderConfig) -> None:
        """Fold the share of unmasked tokens into the vectors, and pair neighbours in rotated queries and keys."""
        if config.mask_id is not None:
            words = take_tensor(tensors, _WORDS, (config.vocabulary_size, config.d_model))
            tensors[_WORDS] = words * _UNMASKED_SHARE
        if config.positions is Positions.LEARNED:
            super().fold_tensors(tensors, config_json, config)
            return
        # Checkpoints have an unused table.
        tensors.pop("embeddings.position_embeddings.weight", None)
        for name in [name for name in tensors if ".self.query." in name or ".self.key." in name]:
            shape = (config.d_model, config.d_model)[: 1 + name.endswith("weight")]
            tensors[name] = pair_neighbours(take_tensor(tensors, name, shape), config.heads)


def _read_frequencies(tensors: dict[str, Tensor], config: EncoderConfig) -> EncoderConfig:
    """Return the configuration with the precision of the stored frequencies: those of ESM-2 are rounded to float16."""
    stored = [tensors.pop(name) for name in list(tensors) if name.endswith(_FREQUENCIES)]
    if config.positions is not Positions.ROTARY or not stored:
        return config
    frequencies = rotary_frequencies(config.head_dim, config.rotary_theta, torch.float32)
    if all(each.shape == frequencies.shape for each in stored):
        if all(torch.allclose(each.float(), frequencies, rtol=1e-6, atol=0) for each in stored):
            return config
        if all(torch.equal(each.float(), frequencies.half().float()) for each in stored):
            return replace(config, rotary_float16=True)
    raise CheckpointError(
        f"tensor {_FREQUENCIES} does not hold the frequencies of rotary positions with base {config.rotary_theta}, in "
        "float32 or rounded to float16: only these are supported"
    )


ESM = Family(
    input=EsmInput(positions_follow_padding=True, has_types=False),
    tensor_prefix="esm.",
    size_fields=USUAL_SIZES,
    # transformers ignores the field, and computes gelu.
    activation_field="hidden_act",
    activations={"gelu": Activation.GELU},
    module_names={
        "embedding.tokens": "embeddings.word_embeddings",
        "embedding.positions.table": "embeddings.position_embeddings",
        "embedding.norm": "embeddings.layer_norm",
        "norm": "encoder.emb_layer_norm_after",
    },
    layer_prefix="encoder.layer",
    layer_module_names={
        **BERT_LAYER_MODULES,
        "attention_norm": "attention.LayerNorm",
        "feed_forward_norm": "LayerNorm",
    },
    ignored_prefixes=("embeddings.position_ids", "pooler.", "lm_head.", "contact_head."),
    # Other positions are those of `EsmInput.sizes`.
    fixed_fields={"norm": Norm.PRE, "final_norm": True, "positions": Positions.ROTARY, "rotary_float32": True},
    default_values={"hidden_act": "gelu"},
    required_fields={"is_folding_model": False, **dict.fromkeys(("rope_parameters", "rope_scaling", "head_dim"))},
    # transformers multiplies embeddings by the mask of attention.
    changes_unattended_rows=True,
    read_stored=_read_frequencies,
    sequence_head=SequenceHead("classifier.out_proj", "classifier.dense", HeadActivation.TANH, finds_answers=False),
)
