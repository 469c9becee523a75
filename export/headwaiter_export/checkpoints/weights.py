"""Read files of weights, and build encoders with given or random weights."""

from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from headwaiter_export.checkpoints.json_files import CheckpointError, CheckpointJson, path_inside
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.config.field_checks import WeightsError
from headwaiter_export.encoder.encoder import Encoder

_PRECISIONS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file.

    Raises:
        CheckpointError: the file is missing or damaged.
    """
    if not path.is_file():
        raise CheckpointError(f"{path} is missing: save the weights again, or correct the path")
    try:
        with path.open("rb"):  # safetensors does not say that the file must not be read.
            pass
        return safetensors.torch.load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}): save it again as safetensors") from None


def read_pickle(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a file that `torch.save` wrote; no code in the file is run.

    Raises:
        CheckpointError: the file is missing or damaged, or holds anything but named tensors.
    """
    if not path.is_file():
        raise CheckpointError(f"{path} is missing: save the weights again, or correct the path")
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # noqa: BLE001 - a damaged file raises any error
        reason = str(error).partition("\n")[0]
        raise CheckpointError(f"{path} cannot be read as tensors ({reason}): save the model as safetensors") from None
    if not isinstance(tensors, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) and tensor.layout is torch.strided
        for name, tensor in tensors.items()
    ):
        raise CheckpointError(f"{path} holds more than named dense tensors: save the model as safetensors")
    return {name: tensor.detach() for name, tensor in tensors.items()}


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Read the tensors of the file of weights, or of the shards that its index lists; safetensors before pickle.

    Raises:
        CheckpointError: no file of weights can be read.
    """
    for name, read in (("model.safetensors", read_safetensors), ("pytorch_model.bin", read_pickle)):
        whole, index = folder / name, folder / f"{name}.index.json"
        if whole.is_file():
            return read(whole)
        if index.is_file():
            shards = sorted(set(CheckpointJson.read(index).string_map("weight_map").values()))
            paths = [path_inside(folder, shard, index) for shard in shards]
            return {tensor: value for path in paths for tensor, value in read(path).items()}
    raise CheckpointError(f"{folder} has neither model.safetensors nor pytorch_model.bin: save the model again")


def ignored_index(folder: Path) -> str | None:
    """Return a line about an index of shards that `read_tensors` ignores, because a file has all weights; or None."""
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (folder / name).is_file():
            index = f"{name}.index.json"
            if (folder / index).is_file():
                return f"the checkpoint contradicts itself: {name} is read, and {index} with its shards is left out"
            return None
        if (folder / f"{name}.index.json").is_file():
            return None  # The shards are read.
    return None


def check_tied(tensors: dict[str, Tensor], name: str, other: str, config_json: CheckpointJson) -> None:
    """Check that two tensors that are one in the model, if the checkpoint has both, are equal.

    Raises:
        CheckpointError: the tensors differ.
    """
    if {name, other} <= tensors.keys() and not torch.equal(tensors[name], tensors[other]):
        raise config_json.error("tie_word_embeddings", f"tensors {name} and {other} differ")


def take_tensor(tensors: dict[str, Tensor], name: str, shape: tuple[int, ...]) -> Tensor:
    """Remove a tensor from `tensors`, and return it as float32.

    Raises:
        CheckpointError: the tensor is missing, or has another type of numbers or another shape.
    """
    if name not in tensors:
        raise CheckpointError(f"the checkpoint has no tensor {name}: add it, or correct config.json")
    tensor = tensors.pop(name)
    check_precision(name, tensor)
    if tensor.shape != shape:
        raise CheckpointError(f"tensor {name} has shape {list(tensor.shape)}: config.json requires {list(shape)}")
    return tensor.float()


def check_precision(name: str, tensor: Tensor) -> None:
    """Check that a tensor holds numbers that float32 can hold.

    Raises:
        CheckpointError: the tensor has another type.
    """
    if tensor.dtype not in _PRECISIONS:
        raise CheckpointError(
            f"tensor {name} is {tensor.dtype}: it must be float64, float32, float16 or bfloat16; save the model in one "
            "of them"
        )


def read_encoder(config: EncoderConfig, path: Path) -> Encoder:
    """Build an encoder from a safetensors file whose tensors are named as in `Encoder.state_dict()`.

    A tensor `attention.qkv` may replace `query`, `key` and `value`; it holds their rows in this order.

    Raises:
        CheckpointError: the file cannot be read, or a tensor has another type of numbers.
        WeightsError: a tensor is given twice, or `qkv` has the wrong shape. Further errors: `Encoder.with_weights`.
    """
    weights: dict[str, Tensor] = {}
    for name, tensor in read_safetensors(path).items():
        check_precision(name, tensor)
        for part, rows in _split_fused(config, name, tensor.float()).items():
            if part in weights:
                raise WeightsError(f"{path} has tensor {part} twice, alone and in qkv: remove one of them")
            weights[part] = rows
    return Encoder.with_weights(config, weights)


def random_encoder(config: EncoderConfig, seed: int) -> Encoder:
    """Build an encoder with PyTorch's random initial weights; equal seeds give equal weights."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Encoder(config).eval()


def _split_fused(config: EncoderConfig, name: str, tensor: Tensor) -> dict[str, Tensor]:
    if ".attention.qkv." not in name:
        return {name: tensor}
    widths = [config.heads * width for width in (config.head_dim, config.head_dim, config.value_dim)]
    if tensor.shape[:1] != (sum(widths),):
        raise WeightsError(
            f"tensor {name} has shape {[*tensor.shape]}: the configuration requires {sum(widths)} rows, for query, key "
            "and value"
        )
    parts = zip(("query", "key", "value"), torch.split(tensor, widths), strict=True)
    return {name.replace(".qkv.", f".{part}."): rows for part, rows in parts}
