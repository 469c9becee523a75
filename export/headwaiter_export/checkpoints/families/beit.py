"""BEiT (https://arxiv.org/abs/2106.08254) and data2vec for images: each head adds numbers of distances in the grid."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from headwaiter_export.checkpoints.families.family import Family, SequenceHead
from headwaiter_export.checkpoints.families.images import VIT, ImageInput, norm_of_vectors
from headwaiter_export.checkpoints.json_files import CheckpointJson
from headwaiter_export.checkpoints.weights import take_tensor
from headwaiter_export.config.choices import Pooling
from headwaiter_export.config.encoder import EncoderConfig

_TABLE = "relative_position_bias.relative_position_bias_table"


@dataclass(frozen=True)
class GridBiasInput(ImageInput):
    """The input of BEiT, whose checkpoints may have learned positions, tables of distances, or both."""

    @override
    def sizes(self, config_json: CheckpointJson) -> dict[str, Any]:
        sizes: dict[str, Any] = super().sizes(config_json)
        if not any(map(config_json.is_true, ("use_relative_position_bias", "use_shared_relative_position_bias"))):
            return sizes
        side = config_json.size("image_size") // config_json.size("patch_size")
        return {**sizes, "distance_bias": True, "distance_grid": side}

    @override
    def take_positions(self, tensors: dict[str, Tensor], config_json: CheckpointJson, config: EncoderConfig) -> Tensor:
        if config_json.is_true("use_absolute_position_embeddings"):
            return super().take_positions(tensors, config_json, config)
        return torch.zeros(config.max_tokens, config.d_model)

    @override
    def fold_tensors(self, tensors: dict[str, Tensor], config_json: CheckpointJson, config: EncoderConfig) -> None:
        """Also arrange the tables of all layers by distance, and add the table that all layers share."""
        super().fold_tensors(tensors, config_json, config)
        first_scale = config_json.values.get("layer_scale_init_value", 0.1)
        if type(first_scale) not in (int, float):
            raise config_json.error("layer_scale_init_value", "it must be a number")
        if not first_scale > 0:
            # transformers then gives the layers no scales.
            for layer in range(config.layers):
                tensors |= {f"encoder.layer.{layer}.lambda_{number}": torch.ones(config.d_model) for number in (1, 2)}
        if not config.distance_grid:
            return
        shape = (2 * config.distance_grid - 1) ** 2 + 3, config.heads
        shared = torch.zeros(shape)
        if config_json.is_true("use_shared_relative_position_bias"):
            shared = take_tensor(tensors, f"encoder.{_TABLE}", shape)
        for layer in range(config.layers):
            attention, table = f"encoder.layer.{layer}.attention.attention", shared
            if config_json.is_true("use_relative_position_bias"):
                table = table + take_tensor(tensors, f"{attention}.{_TABLE}", shape)
            tensors[f"{attention}.distances.table"] = _by_place(table)


def _by_place(table: Tensor) -> Tensor:
    """Return the numbers of each head for the distances between places, [H, 4M − 1], see `distance_grid`.

    `table` [(2W − 1)² + 3, H] has the numbers for the shifts from key to query, and then those from the class row to
    patches, from patches to the class row, and from the class row to itself. The distance 0 is that of the class row to
    itself, and that of a patch to itself. So all numbers of the class row are moved by the difference of these two
    numbers, which changes no softmax.
    """
    *_, to_patch, to_class, to_itself = table
    near = table[:-3].flip(0)
    zero = len(near) // 2
    to_patch = to_patch + near[zero] - to_itself
    places = zero + 1
    far = [each.expand(places, -1) for each in (to_class, to_patch)]
    return torch.cat((far[0], near, far[1])).T.contiguous()


def _without_missing_norm(tensors: dict[str, Tensor], config: EncoderConfig) -> EncoderConfig:
    """Leave out the norm of vectors that transformers saves only for models that pool."""
    if config.pooling is Pooling.PATCH_MEAN and "pooler.layernorm.weight" not in tensors:
        return replace(config, after_pooling=())
    return config


# Most of these checkpoints have a norm of the mean of the patches. None has a norm after the layers.
BEIT = replace(
    VIT,
    input=GridBiasInput(),
    tensor_prefix="beit.",
    module_names={**VIT.module_names, "after_pooling.0.norm": "pooler.layernorm"},
    layer_module_names={**VIT.layer_module_names, "attention.distances": "attention.attention.distances"},
    layer_scales={"attention.output": "lambda_1", "feed_forward.down": "lambda_2"},
    boolean_fields={},
    fixed_fields={**VIT.fixed_fields, "key_bias": False, "final_norm": False},
    ignored_prefixes=("embeddings.mask_token", "pooler.", "layernorm.", "lm_head."),
    ignored_suffixes=(".relative_position_index",),
    default_pooling=Pooling.PATCH_MEAN,
    own_modules=lambda _, encoder_json: (norm_of_vectors(encoder_json),),
    read_stored=_without_missing_norm,
    sequence_head=SequenceHead("classifier", norm="pooler.layernorm", poolings=(Pooling.PATCH_MEAN,)),
)
# Its class in transformers has no other width of heads.
DATA2VEC_VISION = replace(BEIT, tensor_prefix="data2vec_vision.", optional_size_fields={})


def _of_class_row(family: Family) -> Family:
    """Return the family of checkpoints that pool the class row, and that have a norm after the layers."""
    return replace(
        family,
        fixed_fields={**family.fixed_fields, "final_norm": True},
        ignored_prefixes=("embeddings.mask_token", "pooler.", "lm_head."),
        default_pooling=Pooling.CLS,
        own_modules=VIT.own_modules,
        sequence_head=SequenceHead("classifier"),
    )


BEIT_OF_CLASS_ROW, DATA2VEC_VISION_OF_CLASS_ROW = _of_class_row(BEIT), _of_class_row(DATA2VEC_VISION)
