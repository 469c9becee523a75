"""The inputs of the checkpoint families that take token ids.

Headwaiter's encoders have one table of positions, and token types only if the model takes pairs of texts. Checkpoints
have more tensors at their input; `fold_tensors` adds these into the tensors of an encoder.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headwaiter_export.checkpoint_json import CheckpointError, CheckpointJson
from headwaiter_export.config import EncoderConfig
from headwaiter_export.positions import position_angles
from headwaiter_export.weights import take_tensor

_POSITIONS = "embeddings.position_embeddings"
_TYPES = "embeddings.token_type_embeddings.weight"
_WORDS = "embeddings.word_embeddings.weight"
_ROTATIONS = "encoder.embed_positions.weight"
_BIAS = "encoder.relative_attention_bias"


@dataclass(frozen=True)
class TokenInput:
    """Token ids, all of token type 0 unless the model takes pairs of texts.

    Attributes:
        positions_follow_padding: whether the padding token has no position, and the first position is its id + 1, as in
            fairseq.
        has_types: whether the family has token types.
    """

    positions_follow_padding: bool = False
    has_types: bool = True

    def sizes(self, config_json: CheckpointJson) -> dict[str, Any]:
        """Read the sizes of the input and the fields of its positions, named as in EncoderConfig."""
        sizes = {"vocabulary_size": config_json.size("vocab_size")}
        positions = config_json.size("max_position_embeddings")
        if not self.positions_follow_padding:
            return {**sizes, "max_tokens": positions}
        pad_id = _pad_id(config_json)
        return {**sizes, "max_tokens": positions - pad_id - 1, "pad_id": pad_id}

    def token_types(self, config_json: CheckpointJson) -> int:
        """Return the number of token types; 0 if all tokens have the same type."""
        types = config_json.size("type_vocab_size", least=0) if "type_vocab_size" in config_json.values else 2
        return types if self.has_types and types > 1 else 0

    def fold_tensors(self, tensors: dict[str, Tensor], config_json: CheckpointJson, config: EncoderConfig) -> None:
        """Remove the unused rows of the position table, and add the vector of the only token type to the others."""
        name, unused = f"{_POSITIONS}.weight", config.pad_id or 0
        table = take_tensor(tensors, name, (unused + config.learned_positions, config.embedding_width))[unused:]
        tensors[name] = _with_only_type(table, tensors, config) if self.has_types else table


def _pad_id(config_json: CheckpointJson) -> int:
    return config_json.size("pad_token_id", least=0) if "pad_token_id" in config_json.values else 1


@dataclass(frozen=True)
class RotaryTokenInput(TokenInput):
    """Token ids of type 0 without a position table: attention rotates queries and keys."""

    def fold_tensors(self, tensors: dict[str, Tensor], config_json: CheckpointJson, config: EncoderConfig) -> None:
        """Add the vector of the only token type to all others, and check the angles that the checkpoint stores."""
        table = take_tensor(tensors, _WORDS, (config.vocabulary_size, config.embedding_width))
        tensors[_WORDS] = _with_only_type(table, tensors, config)
        stored = take_tensor(tensors, _ROTATIONS, (config.max_tokens, config.head_dim))
        angles = position_angles(config.max_tokens, config.head_dim)
        # Checkpoints in half precision store rounded values.
        if not torch.allclose(stored.double(), torch.cat((angles.sin(), angles.cos()), 1), rtol=0, atol=1e-2):
            raise CheckpointError(
                f"tensor {_ROTATIONS} does not hold the sines and cosines of rotary positions with base 10,000: only "
                "these positions are supported"
            )


def _with_only_type(table: Tensor, tensors: dict[str, Tensor], config: EncoderConfig) -> Tensor:
    """Return a table of vectors [n, width] plus the vector of token type 0, unless tokens have other types too."""
    if _TYPES not in tensors or config.token_types:
        return table
    types = tensors[_TYPES]
    rows = max(1, len(types)) if types.ndim else 1
    return table + take_tensor(tensors, _TYPES, (rows, table.shape[1]))[0]


@dataclass(frozen=True)
class BucketedTokenInput(TokenInput):
    """Token ids of a model that adds a number to each score, one for each bucket of distances from query to key.

    The buckets are those of T5 (https://arxiv.org/abs/1910.10683, section 2.1): half of them for each direction. Of
    these, half are for one distance each, and the others for ranges that grow by a constant factor up to 128.
    """

    def fold_tensors(self, tensors: dict[str, Tensor], config_json: CheckpointJson, config: EncoderConfig) -> None:
        """Replace the number of each bucket by the number of each distance."""
        super().fold_tensors(tensors, config_json, config)
        fold_buckets(tensors, _BIAS, config)


def fold_buckets(
    tensors: dict[str, Tensor], module: str, config: EncoderConfig, buckets: int = 32, farthest: int = 128
) -> None:
    """Replace the numbers of buckets, `module`.weight, by the number of each distance from query to key.

    All distances of at least `farthest` share one bucket in each direction.
    """
    numbers = take_tensor(tensors, f"{module}.weight", (buckets, config.heads))
    distances = torch.arange(1 - config.max_tokens, config.max_tokens)
    tensors[f"{module}.table"] = numbers[_bucket(distances, buckets, farthest)].T.contiguous()


def _bucket(distances: Tensor, buckets: int, farthest: int) -> Tensor:
    """Return the bucket of each distance from query to key, int64."""
    one_way = buckets // 2
    exact = one_way // 2
    sizes = distances.abs()
    # In float32 and in this order, as in transformers: the bounds of the ranges depend on rounding.
    ratios = torch.log(sizes.clamp(min=1).float() / exact) / math.log(farthest / exact)
    ranges = (exact + (ratios * (one_way - exact)).long()).clamp(max=one_way - 1)
    return torch.where(sizes < exact, sizes, ranges) + one_way * (distances > 0)
