"""Merge one of the adapters that the code of jina-embeddings-v3 keeps beside each weight into the weights.

Each linear layer and each table of vectors has matrices of a low rank for several tasks, whose product is added to its
weights (LoRA, https://arxiv.org/abs/2106.09685, section 4.1).
"""

from typing import Any

from torch import Tensor

from headwaiter_export.checkpoints.json_files import CheckpointError, CheckpointJson
from headwaiter_export.checkpoints.weights import take_tensor

_ORIGINAL = ".parametrizations.weight.original"
_FACTORS = (".parametrizations.weight.0.lora_A", ".parametrizations.weight.0.lora_B")


def adapter_names(config_json: CheckpointJson) -> list[str]:
    """Return the names of the adapters in config.json; none if the checkpoint has no adapters."""
    names = config_json.values.get("lora_adaptations") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise config_json.error("lora_adaptations", "it must be a list of different names")
    return names


def task_prompts(config_json: CheckpointJson, prompts_json: CheckpointJson | None) -> CheckpointJson:
    """Return the prompts of a sentence-transformers folder, or else the texts before those of each task."""
    if prompts_json is not None and prompts_json.values.get("prompts"):
        return prompts_json
    return CheckpointJson(config_json.path, {"prompts": config_json.values.get("task_instructions")})


def merge_adapter(
    tensors: dict[str, Tensor], config_json: CheckpointJson, adapter: str | None, ignored_prefixes: tuple[str, ...]
) -> list[str]:
    """Replace the weights and the adapters among the tensors of a checkpoint by weights with one adapter, or with none.

    For task t, the weights are W + α / r · B[t] A[t] of linear layers, with A [tasks, r, in] and B [tasks, out, r], and
    W + α / r · A[t] B[t] of tables, with A [tasks, n, r] and B [tasks, r, width]. All weights of both kinds have
    adapters, if any has, except tensors with ignored prefixes.

    Returns:
        The names of the adapters; none if the tensors have no adapters.

    Raises:
        CheckpointError: the checkpoint lacks the adapter, or tensors or fields do not describe adapters.
    """
    names = adapter_names(config_json)
    if adapter is not None and adapter not in names:
        raise config_json.error("lora_adaptations", f"{adapter!r} is not among them: choose one")
    modules = [name.removesuffix(_ORIGINAL) for name in tensors if name.endswith(_ORIGINAL)]
    if modules and not config_json.values.get("load_trained_adapters"):
        raise config_json.error("load_trained_adapters", "the checkpoint has adapters, so it must be true")
    if adapter is not None and not modules:
        raise CheckpointError(f"{config_json.path} names adapters, but the weights have none: leave the adapter out")
    if not modules:
        return []
    if not names:
        raise config_json.error("lora_adaptations", "the weights have adapters, so it must name them")
    for name, tensor in tensors.items():
        if name.endswith(".weight") and tensor.ndim > 1 and not name.startswith(ignored_prefixes):
            raise CheckpointError(f"tensor {name} has no adapters, and other tensors have: save the model again")
    rank = config_json.size("lora_rank")
    alpha: Any = config_json.values.get("lora_alpha", 1)
    if type(alpha) not in (int, float):
        raise config_json.error("lora_alpha", "it must be a number")
    for module in modules:
        weight = tensors.pop(module + _ORIGINAL).float()
        rows, columns = weight.shape
        is_table = module.startswith("embeddings.")
        shapes = ((rows, rank), (rank, columns)) if is_table else ((rank, columns), (rows, rank))
        factors = [
            take_tensor(tensors, module + name, (len(names), *shape))
            for name, shape in zip(_FACTORS, shapes, strict=True)
        ]
        if adapter is not None:
            a, b = (each[names.index(adapter)].float() for each in factors)
            weight = weight + (a @ b if is_table else b @ a) * (alpha / rank)
        tensors[f"{module}.weight"] = weight
    return names
