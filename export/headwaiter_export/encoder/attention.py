"""Multi-head attention: the formula, and the PyTorch modules around it."""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headwaiter_export.config.choices import Mask, Positions
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.encoder.attention_layout import AttentionLayout
from headwaiter_export.encoder.experts import ExpertOutput, ExpertValues
from headwaiter_export.encoder.norms import make_norm
from headwaiter_export.encoder.positions import GridRotaryPositions, NoPositions, RotaryPositions, alibi_slopes
from headwaiter_export.encoder.score_terms import ScoreTerms, cap_scores


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    bias: Tensor | None = None,
    cap: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Compute softmax(q kᵀ / √head_dim + bias + mask) v (https://arxiv.org/abs/1706.03762, equation 1).

    With a cap c, c · tanh(s / c) replaces s = q kᵀ / √head_dim. Every layout that uses no fused operator runs this
    function.

    Args:
        query: [..., n, head_dim].
        key: [..., n, head_dim].
        value: [..., n, value_dim].
        mask: added to the scores: 0 where a query attends to a key, otherwise −∞ or the lowest float32. Its shape
            broadcasts to [..., n, n]. None if every query attends to every key.
        bias: added to the scores; its shape broadcasts to [..., n, n]. None without a bias.
        cap: c; 0 for no cap.

    Returns:
        The attention weights [..., n, n], whose rows sum to 1, and the context [..., n, value_dim].
    """
    scale = math.sqrt(query.shape[-1])
    scores = (query / scale) @ key.transpose(-2, -1)
    if cap:
        scores = cap_scores(scores, cap)
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = scores + mask
    # A float32 mask makes float16 scores float32.
    weights = scores.softmax(-1).to(value.dtype)
    return weights, weights @ value


def split_heads(rows: Tensor, heads: int) -> Tensor:
    """View rows [T, H·head_dim] as [T·H, head_dim]: head h of row r is row r·H + h, so heads need no transpose."""
    return rows.view(rows.shape[0] * heads, rows.shape[1] // heads)


def head_indices(rows: Tensor, heads: int) -> Tensor:
    """Turn indices of rows [..., B, n] into indices [..., B, H, n] of the rows that `split_heads` returns."""
    return rows[..., None, :] * heads + torch.arange(heads)[:, None]


class Attention(nn.Module):
    """Attention in H heads, whose contexts are concatenated and, if configured, projected to d_model.

    The projections treat each row alone. The layout knows which rows form a sequence. `number` is that of the layer.
    """

    def __init__(self, config: EncoderConfig, number: int) -> None:
        super().__init__()
        self.heads = config.heads
        self.mask = config.mask
        self.score_cap = config.score_cap
        self.window = config.window if number in config.local_layers else None
        self.positions: nn.Module = NoPositions()
        if config.positions is Positions.ROTARY:
            if self.window is None:
                self.positions = RotaryPositions(config, config.rotary_theta, config.rotary_scaling)
            else:
                self.positions = RotaryPositions(config, config.local_rotary_theta, config.local_rotary_scaling)
        elif config.positions is Positions.ROTARY_GRID:
            self.positions = GridRotaryPositions(config)
        self.slopes = alibi_slopes(config.heads) if config.positions is Positions.ALIBI else ()
        self.temperature = LearnedTemperature(config) if config.learned_temperature else nn.Identity()
        self.distances = DistanceBias(config) if config.distance_bias else None
        self.places = config.distance_places
        self.distance_keys = DistanceVectors(config) if config.distance_keys else None
        self.distance_queries = DistanceVectors(config) if config.distance_queries else None
        self.gated_distances = GatedDistances(config) if config.gates_distances else None
        inner_width, context_width = config.heads * config.head_dim, config.heads * config.value_dim
        self.query = nn.Linear(config.d_model, inner_width, config.query_bias)
        self.key = nn.Linear(config.d_model, inner_width, config.key_bias)
        self.value: nn.Module = nn.Linear(config.d_model, context_width, config.value_bias)
        self.query_norm, self.key_norm = (
            make_norm(config, config.head_dim) if config.query_key_norm else None for _ in range(2)
        )
        self.output: nn.Module = nn.Identity()
        if config.output_projection:
            self.output = nn.Linear(context_width, config.d_model, config.output_bias)
        if config.experts:
            self.value, self.output = ExpertValues(config), ExpertOutput(config)

    def _attend(self, x: Tensor, source: Tensor, layout: AttentionLayout, attend: Callable[..., Tensor]) -> Tensor:
        """Transform rows [R, d_model] to [R, width]; `attend` is a function of the layout, `source` has the keys."""
        query, key = self._normalize(self.query(x), self.query_norm), self._normalize(self.key(source), self.key_norm)
        query, key = self.positions(self.temperature(query), layout), self.positions(key, layout)
        distance_keys: DistanceVectors | GatedDistances | None = self.distance_keys
        if self.gated_distances is not None:
            query, key = self.gated_distances.extend(query, key, x)
            distance_keys = self.gated_distances
        by_distance = (self.distances, distance_keys, self.distance_queries)
        tables = (None if each is None else each.table for each in by_distance)
        terms = ScoreTerms(self.mask, self.window, *tables, slopes=self.slopes, places=self.places, cap=self.score_cap)
        context = attend(query, key, self.value(source), self.heads, terms)
        projected: Tensor = self.output(context, x) if isinstance(self.output, ExpertOutput) else self.output(context)
        return projected

    def _normalize(self, rows: Tensor, norm: nn.Module | None) -> Tensor:
        """Normalise each head of queries or keys [R, H·head_dim]."""
        return rows if norm is None else norm(rows.view(rows.shape[0], self.heads, -1)).flatten(1)


class SelfAttention(Attention):
    """Attention within the rows of a sequence."""

    def forward(self, x: Tensor, layout: AttentionLayout) -> Tensor:
        """Transform rows [R, d_model] to [R, width]; a row attends only to rows of its own sequence."""
        return self._attend(x, x, layout, layout.attend)


class CrossAttention(Attention):
    """Attention from the rows of a decoder to all rows of the same sequence in the encoder, wherever they are."""

    def __init__(self, config: EncoderConfig, number: int) -> None:
        anywhere = replace(
            config,
            mask=Mask.NONE,
            positions=Positions.NONE,
            pad_id=None,
            distance_bias=False,
            distance_keys=False,
            distance_queries=False,
            score_cap=0.0,
        )
        super().__init__(anywhere, number)

    def forward(self, x: Tensor, layout: AttentionLayout, source: Tensor) -> Tensor:
        """Transform rows of a decoder, given the rows [R, d_model] of the encoder and the layout of the decoder."""
        return self._attend(x, source, layout, layout.attend_to_source)


class DistanceBias(nn.Module):
    """A number for each head and each distance from query to key, from the lowest negative one to the largest."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(config.heads, 2 * config.largest_distance + 1))


class DistanceVectors(nn.Module):
    """A vector for each head and each distance, −(max_tokens − 1) to max_tokens − 1: see `multiply_by_distance`."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(config.heads, 2 * config.max_tokens - 1, config.head_dim))


class GatedDistances(nn.Module):
    """A number for each head and each distance from query to key, times a gate computed from the query's row.

    For the part x of the row that belongs to the head, the gate is a (b c − 1) + 2 with (a, b) = sigmoid(W x + w) and a
    learned c in each head. Queries get the gate as one more value in each head, which `table` multiplies.
    Source: https://arxiv.org/abs/2110.13900, section III-B, and `transformers`' WavLMAttention.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.linear = _GateLayer(config.d_model // config.heads, 2)
        self.constants = nn.Parameter(torch.ones(config.heads))
        self.table = nn.Parameter(torch.randn(config.heads, 2 * config.max_tokens - 1, 1))

    def extend(self, query: Tensor, key: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries and keys [R, H·(head_dim + 1)] for queries and keys [R, H·head_dim] of rows x [R, d_model]."""
        queries, keys, rows = (each.view(each.shape[0], self.heads, -1) for each in (query, key, x))
        a, b = torch.sigmoid(self.linear(rows)).chunk(2, 2)
        gates = a * (b * self.constants[:, None] - 1) + 2
        width = queries.shape[2]
        # Attention divides the products by √(head_dim + 1). The keys' value of 0 keeps the gates out of the products.
        queries = torch.cat((queries * math.sqrt((width + 1) / width), gates * math.sqrt(width + 1)), 2)
        return queries.flatten(1), F.pad(keys, (0, 1)).flatten(1)


class _GateLayer(nn.Linear):
    """The linear layer of `GatedDistances`, which int8 leaves in float32, as all subclasses: its rows are heads."""


class LearnedTemperature(nn.Module):
    """softmax(q kᵀ / T), with one learned T in each head (https://arxiv.org/abs/2112.13492).

    `attention` divides scores by √head_dim, so this module multiplies the queries by √head_dim / T.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.temperature = nn.Parameter(torch.full((config.heads,), math.sqrt(config.head_dim)))

    def forward(self, query: Tensor) -> Tensor:
        """Scale queries [R, H·head_dim]."""
        return query * self.factors

    @property
    def factors(self) -> Tensor:
        """√head_dim / T of each column of the queries, [H·head_dim]."""
        return (math.sqrt(self.head_dim) / self.temperature).repeat_interleave(self.head_dim)
