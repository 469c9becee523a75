"""A PyTorch module of the caller that runs on padded sequences, because it cannot run on packed rows.

Shapes: B sequences of at most N tokens.
"""

import math
from collections.abc import Iterable
from collections.abc import Sequence as Names
from typing import Any

import torch
import torch.nn.functional as F
from torch import SymInt, Tensor
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from headwaiter_export.config.choices import Pooling
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.config.field_checks import MAX_SIZE, ConfigError
from headwaiter_export.config.head import HeadConfig
from headwaiter_export.encoder.attention_layout import AttentionLayout, SingleSequence
from headwaiter_export.encoder.found_attention import NotPackableError, place
from headwaiter_export.encoder.own_module import ModuleEncoder, call_module, check_max_tokens
from headwaiter_export.encoder.reference import inputs_of, random_sequences


class PaddedModuleEncoder(ModuleEncoder):
    """A module that gives rows [B, N, width], vectors [B, width], or logits [B, labels] or [B, N, labels].

    Attributes:
        reason: why the module cannot run on packed rows.
        gives_rows: whether the module gives rows, from which a pooling of ours makes vectors.
    """

    reason: str
    gives_rows: bool

    @classmethod
    def padded(cls, module: Any, reason: str, head: HeadConfig | None = None, **choices: Any) -> "PaddedModuleEncoder":
        """Run a module on one sequence to learn what it gives.

        Args:
            module: maps token ids [B, N] or features [B, N, width], and perhaps a mask [B, N], to its outputs.
            reason: why the module cannot run on packed rows.
            head: the labels of a module that gives logits; `per_token` follows from the logits.
            choices: as in `ModuleEncoder.of`.

        Raises:
            ConfigError: the module cannot be run, or a choice is wrong.
        """
        if head is not None:
            choices |= {"pooling": Pooling.NONE, "normalize": False}
        described = EncoderConfig(**choices, d_model=1, heads=1, layers=1, d_ff=0)
        check_max_tokens(described)
        (longest,) = random_sequences(described, [described.max_tokens])
        inputs = {name: rows[None] for name, rows in inputs_of(described, longest).items()}
        mask = torch.ones(1, described.max_tokens, dtype=torch.int64)
        output = call_module(module, mask=mask, **inputs, names_mask=True)
        _check_output(output, described.max_tokens, None if head is None else head.labels)
        if head is not None:
            head = HeadConfig(head.labels, head.function, per_token=output.ndim == 3)
        # A vector is the mean of one row.
        pooling = described.pooling if output.ndim == 3 or head else Pooling.MEAN
        sizes = usual_sizes(output.shape[-1], described.vocabulary_size, (each.shape for each in module.parameters()))
        config = EncoderConfig(**{**choices, "pooling": pooling}, **sizes, head=head)
        encoder = cls(config, module)
        encoder.reason, encoder.gives_rows = reason, output.ndim == 3 and head is None
        return encoder

    @override
    def forward(
        self,
        tokens: Tensor,
        layout: AttentionLayout,
        token_types: Tensor | None = None,
        target: Tensor | None = None,
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        if self.gives_rows:
            return super().forward(tokens, layout, token_types)
        output = self.encode(tokens, layout, token_types).float()
        if self.config.head is None:
            return output, None, None
        return None, None, layout.from_rows(output) if self.config.head.per_token else output

    @override
    def encode(self, tokens: Tensor, layout: AttentionLayout, token_types: Tensor | None = None) -> Tensor:
        """Return the rows [B · N, width], or the vectors or the logits of sequences."""
        mask = layout.token_mask
        if isinstance(layout, SingleSequence):
            tokens, token_types = tokens[None], None if token_types is None else token_types[None]
        if tokens.shape[:2] != mask.shape:
            # PyTorch's tracer learns here that both have the same sizes.
            raise ValueError(f"the mask has the shape {[*mask.shape]}, and the tokens {[*tokens.shape]}")
        tokens = self._cast_features(tokens)
        with _VariableSizes(tuple(mask.shape), self.config.max_tokens) as sizes:
            output = call_module(self.module, tokens, mask.to(torch.int64), token_types, names_mask=True)
            sizes.check()
        return output.flatten(0, 1) if output.ndim == 3 else output


def usual_sizes(output_width: int, vocabulary_size: int, shapes: Iterable[Names[int]]) -> dict[str, Any]:
    """Return the sizes of layers of the usual shape that have as many weights as layers of an unknown shape.

    How long a sequence takes decides which lengths are checked. The width of attention is that of the largest matrix,
    because the output of a head may have one number alone. `shapes` are those of all weights.
    """
    matrices = [sorted(each) for each in shapes if len(each) > 1 and each[0] != vocabulary_size]
    width = max(matrices, key=math.prod)[-2] if matrices else output_width
    weights = sum(map(math.prod, matrices))
    layers = max(1, weights // (12 * width**2))
    # A layer multiplies 2 · output_width · (width + d_ff) weights.
    d_ff = min(MAX_SIZE, max(0, weights // (2 * layers * output_width) - 2 * width))
    return {"d_model": output_width, "heads": 1, "head_dim": width, "layers": layers, "d_ff": d_ff}


class _VariableSizes(TorchFunctionMode):
    """Check that a traced module computes all numbers of sequences and tokens in the same way."""

    def __init__(self, sizes: tuple[int | SymInt, ...], max_tokens: int) -> None:
        super().__init__()
        self._max_tokens = max_tokens
        self._place = ""
        self._sizes = {
            name: size for name, size in zip(("sequences", "tokens"), sizes, strict=True) if isinstance(size, SymInt)
        }

    @override
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._place = place() or self._place
        self.check()
        if self._sizes and func in (F.linear, F.layer_norm) and args[0].ndim == 3:
            # As in packed graphs: a linear layer of two dimensions is traced to Gemm, which adds the bias, and ONNX
            # Runtime would fuse norms of three dimensions with the sum before them, which is slow on CPUs.
            x = args[0]
            return func(x.flatten(0, 1), *args[1:], **(kwargs or {})).unflatten(0, x.shape[:2])
        return func(*args, **(kwargs or {}))

    def check(self) -> None:
        """Check the sizes where the module calls a function; after its last function, the place is that one's."""
        for name, size in self._sizes.items():
            expression = size.node.expr
            if expression.is_number:
                raise NotPackableError(self._place, f"here or just before, the number of {name} becomes a constant")
            # A comparison with a limit of the code leaves one side of the limit.
            most = size.node.shape_env.bound_sympy(expression).upper
            if name == "tokens" and most < self._max_tokens:
                raise NotPackableError(
                    self._place,
                    f"here or just before, the code treats sequences of more than {most} tokens in another way",
                )


def _check_output(output: Tensor, tokens: int, labels: Names[str] | None) -> None:
    """Check what a module gives for one sequence."""
    shapes = ([1, tokens, output.shape[-1]], [1, output.shape[-1]])
    if [*output.shape] not in shapes:
        raise ConfigError(
            f"the module gives {[*output.shape]} for one sequence of {tokens} tokens: let it return rows "
            f"[1, {tokens}, width] or a vector [1, width]"
        )
    if labels is not None and output.shape[-1] != len(labels):
        raise ConfigError(f"the module gives {output.shape[-1]} logits, and there are {len(labels)} labels: name each")
