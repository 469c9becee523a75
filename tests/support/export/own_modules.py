"""Small modules as users write them: each maps token ids [B, N] or features [B, N, width] to rows [B, N, width]."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from headwaiter_proto.encoder_pb2 import (
    ISOLATION_MIXED,
    ISOLATION_ONE_LENGTH,
    ISOLATION_ONE_SEQUENCE,
    Isolation,
)
from tests.support.oracle import Array

VOCABULARY, WIDTH, HEADS, MAX_TOKENS = 60, 24, 3, 40
LABELS = ("calm", "glad", "sad")

# Computes the contexts [B, H, N, n] of queries, keys and values.
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


sdpa = F.scaled_dot_product_attention


def softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.dropout(torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), dim=-1), 0.1, False) @ v


def einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    weights = F.softmax(torch.einsum("bihd, bjhd -> bhij", q * q.shape[-1] ** -0.5, k), -1)
    return torch.einsum("bhij,bjhd->bihd", weights, v).transpose(1, 2)


def grouped_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = torch.einsum("bhid,bjd->bhij", q, k[:, 0]).softmax(-1)
    return torch.einsum("bhij,bjd->bhid", weights, v[:, 0])


def bmm(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    b, h, n, width = q.shape
    q, k, v = (each.reshape(b * h, n, width) for each in (q, k, v))
    return torch.bmm(torch.bmm(q, k.transpose(1, 2)).mul(width**-0.5).softmax(2), v).view(b, h, n, width)


def _pairs(q: Tensor) -> Tensor:
    places = torch.arange(q.shape[-2])
    return places[None] - places[:, None]


def added_causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = torch.full((q.shape[-2], q.shape[-2]), -1e9).triu(1)
    return (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]) + mask).softmax(-1) @ v


def self_excluding(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-2, -1) * torch.tensor([0.3, 0.5, 0.7])[:, None, None]
    return scores.masked_fill(torch.eye(q.shape[-2], dtype=torch.bool), -torch.finfo(scores.dtype).max).softmax(-1) @ v


def _slopes() -> Tensor:
    return torch.tensor([2.0**-2, 2.0**-4, 2.0**-6])[:, None, None]


def alibi_of_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Add the position of the key instead of its distance, which gives the same weights, as in BLOOM."""
    scores = (_slopes() * torch.arange(q.shape[2])).baddbmm(q[0], k[0].transpose(1, 2), alpha=0.3)
    return scores.masked_fill(_pairs(q) > 0, -torch.inf).softmax(-1)[None] @ v


# Attention that is packed. The masks that a measurement knows are tested in encoder/test_measured_terms.py.
PACKED_ATTENTION: dict[str, Attend] = {
    "sdpa": sdpa,
    "sdpa_causal": lambda q, k, v: sdpa(q, k, v, is_causal=True),
    "softmax": softmax,
    "scaled_by_half": lambda q, k, v: (torch.matmul(q, k.mT) * 0.5).softmax(-1).matmul(v),
    "einsum": einsum,
    "bmm": bmm,
    "added_causal": added_causal,
    "causal_window": lambda q, k, v: sdpa(q, k, v, (_pairs(q) <= 0) & (_pairs(q) >= -6)),
    # The rows of the sequence are cut, as if others could stand behind them.
    "cut": lambda q, k, v: sdpa(q, k, v)[:, :, : q.shape[2]],
    # Every other row.
    "dilated": lambda q, k, v: sdpa(q, k, v, _pairs(q) % 2 == 0),
    "self_excluding": self_excluding,
    "alibi": lambda q, k, v: sdpa(q, k, v, -_slopes() * _pairs(q).abs()[None]),
    "alibi_of_keys": alibi_of_keys,
}
# Attention that is padded, with words of the reason.
PADDED_ATTENTION: dict[str, tuple[Attend, str]] = {
    "capped": (
        lambda q, k, v: (5 * torch.tanh(q @ k.transpose(-2, -1) / 5)).softmax(-1) @ v,
        "between the products and the softmax",
    ),
    "by_content": (
        lambda q, k, v: sdpa(q, k, v, q[:, :1, :, :1] * k[:, :1, :, 0].unsqueeze(-2)),
        "more than the distance",
    ),
    "gated_weights": (
        lambda q, k, v: (q @ k.transpose(-2, -1)).softmax(-1).square() @ v,
        "changed after the softmax",
    ),
    "linear": (
        lambda q, k, v: q.softmax(-1) @ (k.softmax(-2).transpose(-2, -1) @ v),
        "attention that the export knows",
    ),
    "sigmoid": (
        lambda q, k, v: torch.sigmoid(q @ k.transpose(-2, -1)) @ v,
        "attention that the export knows",
    ),
}


class Block(nn.Module):
    """A layer whose attention is a function."""

    def __init__(self, attend: Attend, key_heads: int = HEADS) -> None:
        super().__init__()
        self.attend = attend
        self.key_heads = key_heads
        self.norm = nn.LayerNorm(WIDTH)
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key_value = nn.Linear(WIDTH, 2 * key_heads * WIDTH // HEADS)
        self.output = nn.Linear(WIDTH, WIDTH)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 40), nn.GELU(), nn.Dropout(), nn.Linear(40, WIDTH)
        )

    def heads(self, rows: Tensor) -> Tensor:
        """Arrange rows as [B, H, N, width]."""
        return rows.view(*rows.shape[:2], -1, WIDTH // HEADS).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Transform rows."""
        y = self.norm(x)
        k, v = map(self.heads, self.key_value(y).chunk(2, -1))
        context = self.attend(self.heads(self.query(y)), k, v)
        x = x + self.output(context.transpose(1, 2).flatten(2))
        out: Tensor = x + self.feed_forward(x)
        return out


class Tokens(nn.Module):
    """An encoder of token ids with learned positions."""

    def __init__(self, attend: Attend = sdpa, **choices: Any) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(MAX_TOKENS, WIDTH)
        self.blocks = nn.ModuleList(Block(attend, **choices) for _ in range(2))

    def embed(self, ids: Tensor) -> Tensor:
        """Return the embeddings of ids."""
        if ids.shape[1] > MAX_TOKENS:
            raise ValueError(f"at most {MAX_TOKENS} tokens")
        x: Tensor = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        return x

    def forward(self, ids: Tensor) -> Tensor:
        """Encode ids."""
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return x


class PositionTable(Tokens):
    """Adds the first rows of a table, as in many Vision Transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(1, MAX_TOKENS, WIDTH))

    def embed(self, ids: Tensor) -> Tensor:
        x: Tensor = self.tokens(ids) + self.table[:, : ids.size(1)]
        return x


class SummedPositions(Tokens):
    """Adds up ones that are no whole numbers, as OPT."""

    def embed(self, ids: Tensor) -> Tensor:
        x: Tensor = self.tokens(ids) + self.positions((torch.ones(ids.shape).cumsum(1) - 1).long())
        return x


class CountedPositions(Tokens):
    """Counts the tokens other than id 1, as in RoBERTa."""

    def embed(self, ids: Tensor) -> Tensor:
        is_token = ids.ne(1).int()
        x: Tensor = self.tokens(ids) + self.positions((torch.cumsum(is_token, dim=1) * is_token).long().clamp(max=39))
        return x


class Rotary(Tokens):
    """Rotates queries and keys."""

    def __init__(self) -> None:
        super().__init__(self.rotated)
        self.register_buffer("frequencies", 100.0 ** -torch.arange(0, 1, 0.25))

    def embed(self, ids: Tensor) -> Tensor:
        x: Tensor = self.tokens(ids)
        return x

    def rotate(self, x: Tensor) -> Tensor:
        """Rotate the halves of each head."""
        angles = torch.outer(torch.arange(x.shape[-2]).float(), self.get_buffer("frequencies"))
        one, two = x.chunk(2, -1)
        return torch.cat((one * angles.cos() - two * angles.sin(), two * angles.cos() + one * angles.sin()), -1)

    def rotated(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend with rotated queries and keys."""
        return F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v)


class ComplexRotary(Rotary):
    """Rotates them as complex numbers from a table, as in Llama's own code."""

    def __init__(self) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(MAX_TOKENS).float(), self.get_buffer("frequencies"))
        self.register_buffer("rotations", torch.polar(torch.ones_like(angles), angles))

    def rotate(self, x: Tensor) -> Tensor:
        """Rotate the pairs of each head."""
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        rotated = pairs * self.get_buffer("rotations")[: x.shape[-2]]
        return torch.view_as_real(rotated).flatten(-2).type_as(x)


class CutRotary(Rotary):
    """Cuts the table of n angles to n rows, as ESM-2's own code."""

    def rotate(self, x: Tensor) -> Tensor:
        """Rotate the halves of each head."""
        angles = torch.outer(torch.arange(x.shape[-2]).float(), self.get_buffer("frequencies"))[: x.shape[-2]]
        one, two = x.chunk(2, -1)
        return torch.cat((one * angles.cos() - two * angles.sin(), two * angles.cos() + one * angles.sin()), -1)


class RelativeTable(Tokens):
    """Adds learned numbers for clipped distances."""

    def __init__(self) -> None:
        super().__init__(self.biased)
        self.table = nn.Embedding(17, HEADS)

    def biased(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend with the bias."""
        bias = self.table(_pairs(q).clamp(-8, 8) + 8).permute(2, 0, 1)
        scores: Tensor = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]) + bias
        return scores.softmax(-1) @ v


class WithMask(Tokens):
    """Needs a mask, and looks at its values."""

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, str]:  # type: ignore[override]
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        if not mask.all():
            x = x * mask[..., None]
        return x, "more"


class MultiheadAttention(nn.Module):
    """Attention of PyTorch's own module."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Encode ids."""
        x = self.embedding(ids)
        causal_mask = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)
        y = self.attention(x, x, x, key_padding_mask=mask == 0, attn_mask=causal_mask)[0]
        rows: Tensor = x + y
        return rows


def stack(**choices: Any) -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 40, batch_first=True, **choices)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def hooked() -> nn.Module:
    """Return a module with hooks, a forward of its own, and parametrized weights."""
    module = Tokens()
    first: Any = module.blocks[0]
    first.register_forward_hook(lambda module, args, output: output * 1.5)
    original = first.norm.forward
    first.norm.forward = lambda x: original(x) + 0.25
    parametrizations.weight_norm(first.output)
    return module


class Features(nn.Module):
    """An encoder of features."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = nn.Linear(6, WIDTH)
        self.block = Block(softmax)

    def forward(self, x: Tensor) -> Tensor:
        """Encode features."""
        rows: Tensor = self.block(self.projection(x))
        return rows


IDS: dict[str, Any] = {"vocabulary_size": VOCABULARY}
FEATURES: dict[str, Any] = {"feature_width": 6}
# Modules that are packed, each with what it takes.
PACKED: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    **{name: (partial(Tokens, attend), IDS) for name, attend in PACKED_ATTENTION.items()},
    "relative_table": (RelativeTable, IDS),
    "grouped": (partial(Tokens, partial(sdpa, enable_gqa=True), key_heads=1), IDS),
    "grouped_einsum": (partial(Tokens, grouped_einsum, key_heads=1), IDS),
    "position_table": (PositionTable, IDS),
    "counted_positions": (CountedPositions, IDS),
    "summed_positions": (SummedPositions, IDS),
    "rotary": (Rotary, IDS),
    "complex_rotary": (ComplexRotary, IDS),
    "cut_rotary": (CutRotary, IDS),
    "with_mask": (WithMask, IDS),
    "multihead_attention": (MultiheadAttention, IDS),
    "transformer_encoder": (lambda: stack(norm_first=True, activation="gelu"), {"feature_width": WIDTH}),
    "transformer_encoder_post": (stack, {"feature_width": WIDTH}),
    "hooked": (hooked, IDS),
    "features": (Features, FEATURES),
}


class Convolution(Tokens):
    """Mixes neighbouring rows."""

    def embed(self, ids: Tensor) -> Tensor:
        x = super().embed(ids)
        return x + F.pad(x[:, 1:], (0, 0, 0, 1))


class Centred(Tokens):
    """Subtracts the mean of all rows."""

    def embed(self, ids: Tensor) -> Tensor:
        x = super().embed(ids)
        return x - x.mean(1, keepdim=True)


class FaintSum(Tokens):
    """Adds a little of the rows before, far below the tolerance of results."""

    def embed(self, ids: Tensor) -> Tensor:
        x = super().embed(ids)
        return x + 1e-7 * x.cumsum(1)


class PositionsFromTheEnd(Tokens):
    """Numbers the tokens backwards."""

    def embed(self, ids: Tensor) -> Tensor:
        x: Tensor = self.tokens(ids) + self.positions(torch.arange(ids.shape[1] - 1, -1, -1).clamp(max=39))
        return x


class PositionsOfPositions(Tokens):
    """Looks up positions in themselves, which finds those of another sequence behind a shorter one."""

    def embed(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1])
        x: Tensor = self.tokens(ids) + self.positions(places[places])
        return x


class MaskOfIds(Tokens):
    """Masks the last id itself."""

    def forward(self, ids: Tensor) -> Tensor:
        x, mask = self.embed(ids), (ids != VOCABULARY - 1)[:, None, None]
        for block in self.blocks:
            block.attend = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, mask)  # type: ignore[assignment]
            x = block(x)
        return x


class Branch(Tokens):
    """Decides by the values of ids."""

    def forward(self, ids: Tensor) -> Tensor:
        x = super().forward(ids)
        return x * 2 if ids[0, 0] > 0 else x


class LateBranch(Tokens):
    """Decides by the values of ids, and equally for nearly all sequences."""

    def forward(self, ids: Tensor) -> Tensor:
        x = super().forward(ids)
        return x * 2 if ids.sum() > 2 else x


class Contains(Tokens):
    """Looks for a token."""

    def forward(self, ids: Tensor) -> Tensor:
        x = super().forward(ids)
        return x * 2 if VOCABULARY in ids else x


class Pooled(Tokens):
    """Gives one vector."""

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids).mean(1)


class BakedLength(Tokens):
    """Depends on the number of rows as a number of Python."""

    def embed(self, ids: Tensor) -> Tensor:
        return super().embed(ids) * int(ids.shape[1])


class BakedBatch(Pooled):
    """Depends on the number of sequences as a number of Python."""

    def embed(self, ids: Tensor) -> Tensor:
        return super().embed(ids) * int(ids.shape[0])


class BranchByLength(Centred):
    """Computes long sequences in another way."""

    def embed(self, ids: Tensor) -> Tensor:
        x = super().embed(ids)
        return x if ids.shape[1] < 9 else 2 * x


class LateBranchByLength(Centred):
    """Computes long sequences in another way at its end."""

    def forward(self, ids: Tensor) -> Tensor:
        x = super().forward(ids)
        return x if x.shape[1] < 9 else x + x


class OtherBranch(Tokens):
    """Decides by a value that PyTorch's tracer does not know."""

    def embed(self, ids: Tensor) -> Tensor:
        x = super().embed(ids)
        return x[:, torch.nonzero(ids[0] >= 0)[:, 0]]


class Static(Tokens):
    """Has no attention."""

    def forward(self, ids: Tensor) -> Tensor:
        return self.embed(ids)


class MaskedTokens(Tokens):
    """Gives its attention the mask of tokens."""

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
        x = self.embed(ids)
        for block in self.blocks:
            block.attend = partial(self.masked, is_token=mask[:, None, None] > 0)  # type: ignore[assignment]
            x = block(x)
        return x

    def masked(self, q: Tensor, k: Tensor, v: Tensor, is_token: Tensor) -> Tensor:
        """Attend with a bias by content, and a cap."""
        scores = 5 * torch.tanh(q @ k.transpose(-2, -1) / 5) + q[..., :1] * k[..., :1].transpose(-2, -1)
        return scores.masked_fill(~is_token, -torch.inf).softmax(-1) @ v


class MaskedConvolution(MaskedTokens):
    """Mixes neighbouring rows, also with those of padding."""

    def embed(self, ids: Tensor) -> Tensor:
        x = super().embed(ids)
        return x + F.pad(x[:, 1:], (0, 0, 0, 1))


class MaskedMixer(Tokens):
    """Mixes rows by their mean, without attention, and names its mask."""

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        x = self.embed(ids)
        mask = torch.ones_like(ids) if attention_mask is None else attention_mask
        weights = (mask / mask.sum(1, keepdim=True))[..., None]
        for block in self.blocks:
            x = x + block.get_submodule("feed_forward")(x) * (weights * x).sum(1, keepdim=True)
        return x


class MaskedVectors(MaskedTokens):
    """Gives one vector for each sequence."""

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
        x = super().forward(ids, mask).masked_fill(mask[..., None] == 0, -torch.inf)
        return x.amax(1)


class ScaledByBatch(nn.Module):
    """Has one scale for the features of all sequences, as dynamic quantization has."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Round features."""
        scale = x.abs().max() / 127
        rows: Tensor = self.linear((x / scale).round() * scale)
        return rows


class Classifier(MaskedTokens):
    """Gives logits of three labels, for each sequence or each token."""

    def __init__(self, *, per_token: bool) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, 3)
        self.per_token = per_token

    def forward(self, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        x = super().forward(ids, mask)
        return {"logits": self.head(x if self.per_token else x[:, 0])}


# Modules that are padded, each with what it takes, the sequences that may share a batch, and words of the reason.
PADDED: dict[str, tuple[Callable[[], nn.Module], dict[str, Any], Isolation, str]] = {
    **{
        name: (partial(Tokens, attend), IDS, ISOLATION_ONE_LENGTH, reason)
        for name, (attend, reason) in PADDED_ATTENTION.items()
    },
    "mask_of_ids": (MaskOfIds, IDS, ISOLATION_ONE_LENGTH, "content"),
    "convolution": (Convolution, IDS, ISOLATION_ONE_LENGTH, "mixes rows outside attention"),
    "centred": (Centred, IDS, ISOLATION_ONE_LENGTH, "mixes rows outside attention"),
    "faint_sum": (FaintSum, IDS, ISOLATION_ONE_LENGTH, "mixes rows outside attention"),
    "positions_from_the_end": (PositionsFromTheEnd, IDS, ISOLATION_ONE_LENGTH, "its positions depend on the length"),
    "positions_of_positions": (PositionsOfPositions, IDS, ISOLATION_ONE_LENGTH, "its positions depend on the length"),
    "static": (Static, IDS, ISOLATION_MIXED, "attention that the export knows"),
    "pooled": (Pooled, IDS, ISOLATION_ONE_LENGTH, "a vector for each sequence"),
    "masked": (MaskedTokens, IDS, ISOLATION_MIXED, "own_modules.py:"),
    "masked_convolution": (MaskedConvolution, IDS, ISOLATION_ONE_LENGTH, "own_modules.py:"),
    "masked_mixer": (MaskedMixer, IDS, ISOLATION_MIXED, "attention that the export knows"),
    "masked_vectors": (MaskedVectors, IDS, ISOLATION_MIXED, "a vector for each sequence"),
    "scaled_by_batch": (ScaledByBatch, FEATURES, ISOLATION_ONE_SEQUENCE, "attention that the export knows"),
    "logits": (lambda: Classifier(per_token=False), {**IDS, "labels": LABELS}, ISOLATION_MIXED, "logits"),
    "token_logits": (lambda: Classifier(per_token=True), {**IDS, "labels": LABELS}, ISOLATION_MIXED, "logits"),
}
# Modules that are refused, each with words of the reason.
REFUSED: dict[str, tuple[Callable[[], nn.Module], tuple[str, ...]]] = {
    "branch": (Branch, ("own_modules.py:", "cannot trace")),
    "late_branch": (LateBranch, ("own_modules.py:", "cannot trace")),
    "contains": (Contains, ("own_modules.py:", "cannot trace")),
    "baked_length": (BakedLength, ("own_modules.py:", "the number of tokens becomes a constant")),
    "baked_batch": (BakedBatch, ("own_modules.py:", "the number of sequences becomes a constant")),
    "other_branch": (OtherBranch, ("own_modules.py:",)),
    "branch_by_length": (BranchByLength, ("own_modules.py:", "more than 8 tokens")),
    "late_branch_by_length": (LateBranchByLength, ("own_modules.py:", "more than 8 tokens")),
}


def random_module(make: Callable[[], nn.Module]) -> nn.Module:
    """Make a module with weights far from their initial values."""
    torch.manual_seed(0)
    module = make().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return module


def draw_sequences(takes: dict[str, Any], lengths: Sequence[int]) -> list[Array]:
    """Return sequences of these lengths for a module that takes ids or features."""
    rng = np.random.default_rng(3)
    if "vocabulary_size" in takes:
        return [rng.integers(0, VOCABULARY, n) for n in lengths]
    return [rng.standard_normal((n, takes["feature_width"]), np.float32) for n in lengths]


@torch.inference_mode()
def own_outputs(module: nn.Module, sequence: Array) -> Array:
    """Return what a padded module itself gives for one sequence."""
    tokens = torch.from_numpy(sequence)[None]
    mask = [torch.ones(tokens.shape[:2], dtype=torch.int64)] if isinstance(module, MaskedTokens) else []
    output = module(tokens, *mask)
    outputs: Array = (output["logits"] if isinstance(output, dict) else output)[0].numpy()
    return outputs
