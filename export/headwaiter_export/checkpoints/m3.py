"""Read the two linear layers that FlagEmbedding puts after an encoder, as in bge-m3, beside the pooled vector.

One computes a weight of each token; the weights of a text are a sparse vector. The other makes a vector of each token.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from headwaiter_export.checkpoints.json_files import CheckpointError, is_present
from headwaiter_export.checkpoints.modules_json import Modules
from headwaiter_export.checkpoints.texts import TextConfig
from headwaiter_export.checkpoints.tokenizers.auto_tokenizer import CheckpointTokenizer
from headwaiter_export.checkpoints.weights import check_precision, read_pickle
from headwaiter_export.config.after_pooling import ModuleKind, PooledModule
from headwaiter_export.config.choices import Pooling
from headwaiter_export.config.head import HeadConfig, ScoreFunction

_WEIGHTS_FILE, _VECTORS_FILE = "sparse_linear.pt", "colbert_linear.pt"
# The tokens that FlagEmbedding leaves out of sparse vectors.
_UNWEIGHTED = ("cls_token", "eos_token", "pad_token", "unk_token")

M3_HEAD = HeadConfig(("weight",), ScoreFunction.RELU, per_token=True)


@dataclass(frozen=True, eq=False)
class M3Layers:
    """The layers of a checkpoint.

    Attributes:
        weights: their tensors, named as in `Encoder.state_dict()`.
        row_modules: the modules that make a vector of each hidden row.
    """

    weights: dict[str, Tensor]
    row_modules: tuple[PooledModule, ...]


def read_m3(folder: Path, width: int) -> M3Layers:
    """Read the layers, which take hidden rows of this width.

    Raises:
        CheckpointError: a file is damaged, or its tensors have other names or shapes.
    """
    vectors = _read_linear(folder / _VECTORS_FILE, width)
    weights = _read_linear(folder / _WEIGHTS_FILE, width)
    if len(weights["weight"]) != 1:
        raise CheckpointError(
            f"{folder / _WEIGHTS_FILE} gives {len(weights['weight'])} weights of a token: 1 is allowed"
        )
    dense = PooledModule(kind=ModuleKind.DENSE, width=len(vectors["weight"]))
    named = {f"head.output.{name}": tensor for name, tensor in weights.items()}
    named |= {f"row_modules.0.linear.{name}": tensor for name, tensor in vectors.items()}
    return M3Layers(named, (dense, PooledModule(kind=ModuleKind.NORMALIZE)))


def has_m3_layers(folder: Path) -> bool:
    """Return whether a folder has both layers; FlagEmbedding reads neither if one is missing."""
    return is_present(folder / _WEIGHTS_FILE) and is_present(folder / _VECTORS_FILE)


def check_m3(folder: Path, modules: Modules, pooling: Pooling | None, *, normalize: bool | None) -> None:
    """Check that nothing asks for other pooled vectors than FlagEmbedding's: the first row, scaled to unit length.

    Raises:
        CheckpointError: the modules of sentence-transformers or the caller ask for other vectors.
    """
    own = Modules(folder, Pooling.CLS, normalize=True, prompts=modules.prompts)
    if modules not in (own, Modules(folder)) or pooling not in (None, Pooling.CLS) or normalize is False:
        raise CheckpointError(
            f"{folder} has {_WEIGHTS_FILE} and {_VECTORS_FILE}, with which the pooled vector is the first row of unit "
            "length: remove other modules, include_prompt and flags of pooling, or remove the two files"
        )


def with_m3_rules(text: TextConfig, saved: CheckpointTokenizer) -> TextConfig:
    """Return a configuration of texts with the tokens that have no weight."""
    reference = saved.reference
    names = (reference.special_tokens_map.get(kind) for kind in _UNWEIGHTED)
    ids = sorted({reference.convert_tokens_to_ids(name) for name in names if name is not None})
    return replace(text, unweighted_ids=tuple(ids))


def _read_linear(path: Path, width: int) -> dict[str, Tensor]:
    """Return the float32 weight [n, width] and bias [n] of a linear layer."""
    tensors = read_pickle(path)
    for name, tensor in tensors.items():
        check_precision(f"{name} of {path}", tensor)
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    rows = shapes.get("weight", (0,))[0] if shapes.get("weight") else 0
    if shapes != {"weight": (rows, width), "bias": (rows,)} or not rows:
        raise CheckpointError(f"{path} must hold a weight [n, {width}] and a bias [n]: save the layer again")
    layer = {name: tensor.float() for name, tensor in tensors.items()}
    for name, tensor in layer.items():
        if not tensor.isfinite().all():
            raise CheckpointError(f"{name} of {path} has NaN, or is too large for float32: save the layer again")
    return layer
