"""How an encoder knows the order of tokens: vectors added to the embeddings, rotations of queries and keys, or slopes.

Every layout says at which position of its sequence a row is. Shapes: R rows, H heads, d = d_model.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.config.rotary_scaling import RotaryScaling, ScalingKind
from headwaiter_export.encoder.attention_layout import AttentionLayout, interleave


class NoPositions(nn.Module):
    """No positions: the order of the rows does not matter."""

    def forward(self, x: Tensor, _: AttentionLayout, __: Tensor | None = None) -> Tensor:
        """Return rows [R, d] unchanged."""
        return x


class LearnedPositions(nn.Module):
    """One learned vector for each position; see `pad_id` of EncoderConfig."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.pad_id = config.pad_id
        self.table = nn.Embedding(config.learned_positions, config.embedding_width)

    def forward(self, x: Tensor, layout: AttentionLayout, tokens: Tensor) -> Tensor:
        """Add the position vectors to rows [R, d] of the tokens [R]."""
        indices = layout.positions
        if self.pad_id is not None:
            indices = _count_positions(tokens != self.pad_id, indices)
        positions: Tensor = self.table(indices)
        return x + positions


def _count_positions(counted: Tensor, positions: Tensor) -> Tensor:
    """Return how many rows of its sequence are counted up to each counted row, and 0 for the other rows, int64 [R].

    `counted` says which rows are counted, bool [R]; `positions` are those of the rows in their sequences, int64 [R].
    """
    ones = counted.long()
    up_to = ones.cumsum(0)
    # A row that no sequence begins with, such as those that only fill a batch, may have any position.
    first_row = (torch.ones_like(up_to).cumsum(0) - 1 - positions).clamp(min=0)
    before_sequence = (up_to - ones).index_select(0, first_row)
    return (up_to - before_sequence) * ones


class SinusoidalPositions(nn.Module):
    """Fixed vectors: position p has sin(p / 10000^(2i/d)) at index 2i and cos(p / 10000^(2i/d)) at index 2i + 1.

    Source: https://arxiv.org/abs/1706.03762, section 3.5.
    """

    table: Tensor

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        angles = position_angles(config.max_tokens, rotary_frequencies(config.embedding_width))
        self.register_buffer("table", interleave(angles.sin(), angles.cos()).float(), persistent=False)

    def forward(self, x: Tensor, layout: AttentionLayout, _: Tensor) -> Tensor:
        """Add the position vectors to rows [R, d]."""
        return x + self.table.index_select(0, layout.positions)


class RotaryPositions(nn.Module):
    """Rotations: in every head, position p rotates the pair (2i, 2i + 1) by the angle p / theta^(2i/head_dim).

    The product of a query and a key then depends only on the distance between their positions. `scaling` changes the
    angles, and may multiply the rotated queries and keys by a number.
    Source: https://arxiv.org/abs/2104.09864, section 3.2.
    """

    cosines: Tensor
    sines: Tensor

    def __init__(self, config: EncoderConfig, theta: float, scaling: RotaryScaling | None = None) -> None:
        super().__init__()
        self.heads = config.heads
        angles = self.angles(config, theta, scaling)
        magnitude = 1.0 if scaling is None else scaling.magnitude
        self.register_buffer("cosines", (angles.cos() * magnitude).float(), persistent=False)
        self.register_buffer("sines", (angles.sin() * magnitude).float(), persistent=False)

    def angles(self, config: EncoderConfig, theta: float, scaling: RotaryScaling | None) -> Tensor:
        """Return the angle of each position and pair, [max_tokens, head_dim / 2]."""
        dtype = torch.float32 if config.rotary_float32 else torch.float64
        frequencies = rotary_frequencies(config.head_dim, theta, dtype, scaling)
        if config.rotary_float16:
            frequencies = frequencies.half().to(dtype)
        return position_angles(config.max_tokens, frequencies)

    def forward(self, x: Tensor, layout: AttentionLayout) -> Tensor:
        """Rotate queries or keys [R, H·head_dim]."""
        return layout.rotate(x, self.heads, self.cosines, self.sines)


class GridRotaryPositions(RotaryPositions):
    """Rotations by the place of a patch in a square grid, filled row by row after `prefix_rows` rows without a place.

    The centres of the patches have the coordinates −1 to 1. The coordinate y rotates pair i of the first half of the
    pairs, and x those of the second half, by the angle 2π · coordinate / 100^(4i/head_dim).
    Source: https://arxiv.org/abs/2508.10104, and `transformers`' DINOv3ViTRopePositionEmbedding.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config, theta=100.0)

    @override
    def angles(self, config: EncoderConfig, theta: float, scaling: RotaryScaling | None) -> Tensor:
        patches = torch.arange(config.max_tokens - config.prefix_rows, device="cpu")
        side = max(1, math.isqrt(max(0, len(patches) - 1)) + 1)
        places = torch.stack((patches // side, patches % side), 1)
        coordinates = (2 * places.double() + 1) / side - 1
        frequencies = theta ** -(
            torch.arange(0, config.head_dim, 4, dtype=torch.float64, device="cpu") / config.head_dim
        )
        angles = (2 * math.pi * coordinates[:, :, None] * frequencies).flatten(1)
        return F.pad(angles, (0, 0, config.prefix_rows, 0))


def alibi_slopes(heads: int) -> tuple[float, ...]:
    """Return the slope of each head: the distance from query to key, times the slope, is subtracted from the score.

    For H heads, a power of two, the slopes are 2^(−8/H), 2^(−16/H), …, 2^(−8). For other numbers of heads, the slopes
    for the next lower power of two come first, then every second slope for the next higher one.
    Source: https://arxiv.org/abs/2108.12409, section 3, and the authors' implementation.
    """
    lower = 1 << heads.bit_length() - 1
    slopes = tuple(2 ** (-8 * (i + 1) / lower) for i in range(lower))
    return slopes + tuple(2 ** (-4 * (2 * i + 1) / lower) for i in range(heads - lower))


def position_angles(tokens: int, frequencies: Tensor) -> Tensor:
    """Return the angle of each position and pair, [tokens, pairs]; `frequencies` are those of the pairs."""
    return torch.arange(tokens, dtype=frequencies.dtype, device="cpu")[:, None] * frequencies


def rotary_frequencies(
    width: int, theta: float = 10_000.0, dtype: torch.dtype = torch.float64, scaling: RotaryScaling | None = None
) -> Tensor:
    """Return the angle of one position, 1 / theta^(2i/width), for every pair i, scaled if `scaling` is given.

    In float32, the angles of late positions are inexact; a model that was trained so needs the same angles. The device
    is explicit because encoders are also built on PyTorch's meta device, which computes nothing.
    """
    exponents = torch.arange(0, width, 2, dtype=dtype, device="cpu") / width
    if scaling is not None:
        return _scaled_frequencies(theta**exponents, theta, scaling)
    # transformers divides too; in float32, a negative exponent would give other frequencies.
    return 1 / theta**exponents if dtype is torch.float32 else theta**-exponents


def _scaled_frequencies(periods: Tensor, theta: float, scaling: RotaryScaling) -> Tensor:
    """Return the scaled frequency of each pair, whose frequency without scaling is 1 / period, [width / 2].

    The operations have the order of those in transformers: in float32, another order gives other frequencies.
    """
    frequencies, pairs = 1 / periods, len(periods)
    if scaling.kind is ScalingKind.LINEAR:
        return frequencies / scaling.factor
    if scaling.kind is ScalingKind.LLAMA3:
        turns = scaling.trained_tokens / (2 * math.pi / frequencies)
        share = ((turns - scaling.slow_turns) / (scaling.fast_turns - scaling.slow_turns)).clamp(0, 1)
        return (1 - share) * frequencies / scaling.factor + share * frequencies
    first, last = (
        2 * pairs * math.log(scaling.trained_tokens / (turns * 2 * math.pi)) / (2 * math.log(theta))
        for turns in (scaling.fast_turns, scaling.slow_turns)
    )
    if scaling.whole_pairs:
        first, last = math.floor(first), math.ceil(last)
    # transformers compares with the width, which is twice the number of pairs.
    first, last = max(first, 0), min(last, 2 * pairs - 1)
    last += 0.001 * (first == last)
    share = 1 - ((torch.arange(pairs, dtype=periods.dtype, device="cpu") - first) / (last - first)).clamp(0, 1)
    return 1 / (scaling.factor * periods) * (1 - share) + frequencies * share
