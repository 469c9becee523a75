"""Reads weights files, and builds encoders of given or random weights."""

from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from headwaiter_export.checkpoint_json import CheckpointError
from headwaiter_export.config import EncoderConfig, WeightsError
from headwaiter_export.encoder import Encoder


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file.

    Raises:
        CheckpointError: it is missing or damaged.
    """
    if not path.is_file():
        raise CheckpointError(f"{path} is missing")
    try:
        return safetensors.torch.load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None


def take(tensors: dict[str, Tensor], name: str, shape: tuple[int, ...]) -> Tensor:
    """Remove a tensor that must be there, of floating point and of this shape, and return it in float32.

    Raises:
        CheckpointError: naming the tensor, and what it is by config.json.
    """
    if name not in tensors:
        raise CheckpointError(f"the checkpoint has no tensor {name}")
    tensor = tensors.pop(name)
    if not tensor.is_floating_point():
        raise CheckpointError(f"tensor {name} is {tensor.dtype}: only floating point is known")
    if tensor.shape != shape:
        raise CheckpointError(f"tensor {name} is {list(tensor.shape)}: by config.json it is {list(shape)}")
    return tensor.float()


def read_encoder(config: EncoderConfig, path: Path) -> Encoder:
    """Build an encoder of weights in a safetensors file, named as in our `state_dict`.

    Queries, keys and values may be fused: `attention.qkv` then holds the rows of `query`, `key` and `value`.

    Raises:
        CheckpointError: the file cannot be read, or a tensor is not of floating point.
        WeightsError: a tensor is missing, unexpected, given twice, not finite or of another shape.
    """
    weights: dict[str, Tensor] = {}
    for name, tensor in read_safetensors(path).items():
        if not tensor.is_floating_point():
            raise CheckpointError(f"tensor {name} of {path} is {tensor.dtype}: only floating point is known")
        for part, rows in _split_fused(config, name, tensor.float()).items():
            if part in weights:
                raise WeightsError(f"{path} has {part} twice, alone and in qkv: leave one out")
            weights[part] = rows
    return Encoder.with_weights(config, weights)


def random_encoder(config: EncoderConfig, seed: int) -> Encoder:
    """Build an encoder of PyTorch's initial weights; the same for the same seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Encoder(config).eval()


def _split_fused(config: EncoderConfig, name: str, tensor: Tensor) -> dict[str, Tensor]:
    if ".attention.qkv." not in name:
        return {name: tensor}
    widths = [config.heads * width for width in (config.head_dim, config.head_dim, config.value_dim)]
    if tensor.shape[:1] != (sum(widths),):
        raise WeightsError(
            f"{name} has the shape {[*tensor.shape]}: by the configuration it must have {sum(widths)} rows, "
            "those of query, key and value"
        )
    parts = zip(("query", "key", "value"), torch.split(tensor, widths), strict=True)
    return {name.replace(".qkv.", f".{part}."): rows for part, rows in parts}
