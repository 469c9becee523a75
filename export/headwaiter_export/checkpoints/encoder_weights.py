"""The last stage of reading a checkpoint: read the weights, and give them the names of the encoder's."""

from collections.abc import Mapping

import torch
from torch import Tensor

from headwaiter_export.checkpoints.adapters import merge_adapter
from headwaiter_export.checkpoints.families.family import Family
from headwaiter_export.checkpoints.json_files import CheckpointError
from headwaiter_export.checkpoints.plan import ModelPlan
from headwaiter_export.checkpoints.vocabulary_head import fold_vocabulary_head
from headwaiter_export.checkpoints.weights import check_precision, ignored_index, read_tensors, take_tensor
from headwaiter_export.checkpoints.word_scores import fold_words
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.encoder.encoder import Encoder

# Most layers of a model whose layers share tensors.
_MOST_SHARED_LAYERS = 1000


def read_encoder(plan: ModelPlan) -> tuple[Encoder, list[str]]:
    """Return the encoder of a plan, in float32, and assumptions about the files and tensors that are left out.

    Raises:
        CheckpointError: a tensor is missing, or nothing in config.json describes it, or its shape or type is wrong.
    """
    family, config_json = plan.family, plan.config_json
    assumptions = [line] if (line := ignored_index(plan.folder)) else []
    tensors = _tensors_of_family(plan)
    if plan.word_ids is not None:
        fold_words(tensors, config_json, plan.word_ids, plan.config)
    if family.has_adapters:
        names = merge_adapter(tensors, config_json, plan.adapter, family.ignored_prefixes)
        if names and plan.adapter is None:
            assumptions.append(f"the adapters {', '.join(names)} are left out; --adapter merges one of them")
    config = family.read_stored(tensors, plan.config)
    family.input.fold_tensors(tensors, config_json, config)
    if config.vocabulary_head is not None:
        fold_vocabulary_head(tensors, config_json, family)
    weights = _take_weights(plan, config, tensors)
    _fold_layer_scales(weights, tensors, family, config)
    if left_out := _left_out(tensors, family):
        assumptions.append(f"hidden rows do not depend on tensors {'…, '.join(left_out)}…: they are left out")
    return Encoder.with_weights(config, weights), assumptions


def _tensors_of_family(plan: ModelPlan) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint by their names in the family, without the prefixes of whole models."""
    family, tensors, full_names = plan.family, dict[str, Tensor](), dict[str, str]()
    for full_name, tensor in read_tensors(plan.folder).items():
        if full_name.endswith(family.ignored_suffixes):
            continue
        name = full_name.removeprefix(family.outer_prefix).removeprefix(family.tensor_prefix)
        # Checkpoints converted from TensorFlow keep its names for the parameters of LayerNorm.
        name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        if name in tensors and not torch.equal(tensors[name], tensor):
            raise CheckpointError(
                f"the checkpoint has two tensors for {name}, {full_names[name]} and {full_name}: remove one"
            )
        tensors[name], full_names[name] = tensor, full_name
    for name, tensor in tensors.items():
        if not name.startswith(family.ignored_prefixes):
            check_precision(name, tensor)
    return tensors


def _take_weights(plan: ModelPlan, config: EncoderConfig, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights by their names in `Encoder.state_dict()`; those of the checkpoint leave `tensors`."""
    # Before the modules are made: a wrong number may be a million.
    layers = config.layers + (config.decoder.layers if config.decoder else 0)
    if layers > (_MOST_SHARED_LAYERS if plan.family.shared_module_names else len(tensors)):
        raise CheckpointError(
            f"config.json has {layers} layers, but the checkpoint {len(tensors)} tensors: correct config.json"
        )
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in Encoder(config).state_dict().items()}
    weights = plan.read_added(shapes)
    taken: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        if name in weights:
            continue
        source = plan.family.tensor_name(name)
        if source not in taken:
            taken[source] = take_tensor(tensors, source, shape)
        weights[name] = taken[source]
    return weights


def _left_out(tensors: Mapping[str, Tensor], family: Family) -> list[str]:
    """Return the prefixes of the tensors that no hidden row depends on."""
    for name in tensors:
        if not name.startswith(family.ignored_prefixes):
            raise CheckpointError(
                f"the checkpoint has tensor {name}, which config.json does not "
                "describe: correct config.json, or remove the tensor if hidden rows do not depend on it"
            )
    prefixes = {next(prefix for prefix in family.ignored_prefixes if name.startswith(prefix)) for name in tensors}
    return sorted(prefixes - {"embeddings.position_ids"})  # the numbers 0, 1, 2, …


def _fold_layer_scales(
    weights: dict[str, Tensor], tensors: dict[str, Tensor], family: Family, config: EncoderConfig
) -> None:
    """Remove the scales of all layers from a checkpoint's `tensors`, and multiply them into an encoder's `weights`.

    LayerScale multiplies each column of a block's output by a learned number, x + λ · block(x)
    (https://arxiv.org/abs/2103.17239, section 2). A block ends with a linear layer, so λ · (W y + b) = (λ W) y + λ b.
    """
    for layer in range(config.layers):
        for module, scale_name in family.layer_scales.items():
            scale = take_tensor(tensors, f"{family.layer_prefix}.{layer}.{scale_name}", (config.d_model,))
            weight, bias = (f"layers.{layer}.{module}.{kind}" for kind in ("weight", "bias"))
            weights[weight] = weights[weight] * scale[:, None]
            if bias in weights:
                weights[bias] = weights[bias] * scale
