"""What the layouts of graphs share: how a graph arranges the sequences of a batch in rows, and attends over them.

Each layout is in a file of its own: `packed_cpu.py`, `packed_cuda.py`, `portable.py` and `attention_weights.py`.
`bundle/graphs.py` lists the layout of each graph of a bundle. Shapes are those of `encoder/attention_layout.py`.
"""

from collections.abc import Callable, Mapping
from typing import ClassVar, Self

import onnx_ir as ir
import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from headwaiter_export.config.choices import Pooling
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.encoder.attention import attention, head_indices, split_heads
from headwaiter_export.encoder.attention_layout import AttentionLayout
from headwaiter_export.encoder.score_terms import ScoreTerms
from headwaiter_server.runtime.packing import TARGET

# Names of a graph's inputs, each with the names of its axes.
Axes = Mapping[str, tuple[str, ...]]
# Rewrites to apply to a traced graph, in order.
Fusions = tuple[Callable[[ir.Model], None], ...]


class GraphLayout(AttentionLayout):
    """A layout in which an encoder can be written as a graph.

    Attributes:
        TOKEN_AXES: names of the axes of the tokens or features.
        INPUT_AXES: names of the other inputs, each with the names of its axes.
        PART_AXES: names of the inputs that only graphs of sources and targets have, each with the names of its axes.
        FUSIONS: rewrites that make the layout's graphs faster on its provider.
    """

    TOKEN_AXES: ClassVar[tuple[str, ...]]
    INPUT_AXES: ClassVar[Axes]
    PART_AXES: ClassVar[Axes] = {}
    FUSIONS: ClassVar[Fusions] = ()

    def __init__(self, inputs: Mapping[str, Tensor]) -> None:
        self.inputs = inputs

    @classmethod
    def input_axes(cls, config: EncoderConfig) -> Axes:
        """Return the names of a graph's inputs, each with the names of its axes."""
        axes = {**dict.fromkeys(config.row_inputs, cls.TOKEN_AXES), **cls.INPUT_AXES}
        if not config.takes_target:
            return axes
        targets = {TARGET + name: tuple(_target_axis(axis) for axis in names) for name, names in axes.items()}
        return {**axes, **targets, **cls.PART_AXES}

    @property
    @override
    def target(self) -> Self:
        own = {name.removeprefix(TARGET): each for name, each in self.inputs.items() if name.startswith(TARGET)}
        layout = type(self)(own)
        layout.source = self
        return layout

    def to_rows(self, tokens: Tensor) -> Tensor:
        """Turn the token ids, token types or features that a graph takes into rows [R] or [R, feature_width]."""
        return tokens

    @classmethod
    def output_names(cls, config: EncoderConfig) -> list[str]:
        """Return the names of a graph's outputs, if the encoder gives rows."""
        pooled = [] if config.pooling is Pooling.NONE else ["pooled"]
        return [*pooled, "hidden", *([config.head.output] if config.head else [])]

    def outputs(self, pooled: Tensor | None, hidden: Tensor | None, logits: Tensor | None = None) -> list[Tensor]:
        """Turn the encoder's results into the graph's outputs, in the order of `output_names`."""
        rows = None if hidden is None else self.from_rows(hidden)
        return [output for output in (pooled, rows, logits) if output is not None]


def _target_axis(axis: str) -> str:
    """Return the name of the same axis of targets: only the number of sequences is the same."""
    return axis if axis.startswith("batch") else TARGET + axis


class Packed(GraphLayout):
    """Sequences concatenated without padding: R = T. The server computes the index inputs of each batch.

    Attention gathers the rows into grid cells, and scatters the context back to rows. A cell without a token repeats
    the last row of its own sequence, so attention never reads a row of another sequence.
    """

    TOKEN_AXES = ("tokens",)
    INPUT_AXES: ClassVar[Axes] = {
        "positions": ("tokens",),
        "lengths": ("batch",),
        "gather": ("batch", "sequence"),
        "scatter": ("tokens",),
    }
    PART_AXES: ClassVar[Axes] = {"places": ("rows",)}

    @property
    @override
    def positions(self) -> Tensor:
        return self.inputs["positions"]

    @property
    @override
    def lengths(self) -> Tensor:
        return self.inputs["lengths"]

    @property
    @override
    def token_mask(self) -> Tensor:
        return torch.arange(self.inputs["gather"].shape[1]) < self.lengths[:, None]

    @override
    def attend(self, query: Tensor, key: Tensor, value: Tensor, heads: int, terms: ScoreTerms) -> Tensor:
        return self.attend_in_cells(query, key, value, heads, terms, self)

    @override
    def attend_to_source(self, query: Tensor, key: Tensor, value: Tensor, heads: int, terms: ScoreTerms) -> Tensor:
        if self.source is None:
            return self.attend(query, key, value, heads, terms)
        return self.attend_in_cells(query, key, value, heads, terms, self.source)

    def attend_in_cells(
        self, query: Tensor, key: Tensor, value: Tensor, heads: int, terms: ScoreTerms, keys: "Packed"
    ) -> Tensor:
        """Compute the context as `attend`, for the keys and values of the rows of a layout of the same sequences."""
        q = F.embedding(head_indices(self.inputs["gather"], heads), split_heads(query, heads))
        indices = head_indices(keys.inputs["gather"], heads)
        k, v = (F.embedding(indices, split_heads(rows, heads)) for rows in (key, value))
        bias = terms.bias(q, k)
        _, context = attention(q, k, v, terms.mask(keys.key_mask), bias, terms.cap)
        return context.transpose(1, 2).flatten(2).flatten(0, 1).index_select(0, self.inputs["scatter"])

    @override
    def pad(self, rows: Tensor) -> Tensor:
        # `F.embedding` is traced to Gather. `rows[gather]` would be traced to GatherND, which is slower.
        return F.embedding(self.inputs["gather"], rows)

    @override
    def join(self, source: Tensor, target: Tensor) -> Tensor:
        return super().join(source, target).index_select(0, self.inputs["places"])
