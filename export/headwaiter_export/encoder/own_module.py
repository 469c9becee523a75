"""A PyTorch module of the caller as an encoder: its own code computes the rows, as the reference and in graphs.

In the reference, the module runs on each sequence alone. In a graph, it runs on the rows of a packed batch as if they
were one sequence, and the layout of the graph computes its attention, see `found_attention.py`.
"""

import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from headwaiter_export.config.choices import Mask
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.config.field_checks import ConfigError
from headwaiter_export.encoder.after_pooling import build_modules
from headwaiter_export.encoder.attention_layout import AttentionLayout, SingleSequence
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_export.encoder.found_attention import NotPackableError, place
from headwaiter_export.encoder.measured_attention import Attentions, find_attentions, mark_content
from headwaiter_export.encoder.packed_rows import PackedRows
from headwaiter_export.encoder.reference import Sequence, random_sequences


class ModuleEncoder(Encoder):
    """An encoder whose rows a module of the caller computes, and whose pooling is one of ours.

    The configuration describes what the module takes and gives, and its attention as it was measured. All other fields
    have no meaning, because the module has layers of its own.
    """

    def __init__(self, config: EncoderConfig, module: nn.Module, found: Attentions | None = None) -> None:
        # Without the constructor of Encoder, which would make layers.
        nn.Module.__init__(self)
        self.config = config
        self.module = module
        self.found = found
        self.layers = nn.ModuleList()
        self.after_pooling = build_modules(config.after_pooling, config.pooling_width)
        self.row_modules = nn.Sequential()
        self.decoder = self.attention_pooling = self.vocabulary_head = self.head = None

    @classmethod
    def of(cls, module: nn.Module, **choices: Any) -> "ModuleEncoder":
        """Run a module to find its attention layers.

        Args:
            module: maps token ids [1, n] or features [1, n, width] to rows [1, n, d].
            choices: vocabulary_size or feature_width, max_tokens, pooling and normalize of EncoderConfig.

        Raises:
            ConfigError: the module cannot be run, or a choice is wrong.
            NotPackableError: the module cannot run on packed rows.
        """
        described = EncoderConfig(**choices, d_model=1, heads=1, layers=1, d_ff=0)
        check_max_tokens(described)
        longest = described.max_tokens
        first, third = random_sequences(described, (longest, (longest + 1) // 2))
        second = _sequence_of_marks(described)
        width = run_module(module, torch.from_numpy(first)).shape[1]
        run = lambda sequence: run_module(module, mark_content(torch.from_numpy(sequence)))  # noqa: E731
        found = find_attentions(run, [first, second, third])
        terms = [each.terms for each in found.layers]
        windows = [each.window for each in terms if each.window is not None]
        masks = {each.pattern for each in terms} - {Mask.NONE}
        config = EncoderConfig(
            **choices,
            d_model=width,
            heads=max(each.heads for each in found.layers),
            head_dim=max(each.head_dim for each in found.layers),
            value_dim=max(each.value_dim for each in found.layers),
            layers=len(found.layers),
            # A server reserves memory for three arrays of this width.
            d_ff=max(found.widest, width),
            gated=True,
            mask=max(masks, default=Mask.NONE),
            distance_bias=any(each.table is not None for each in terms),
            local_layers=tuple(i for i, each in enumerate(terms) if each.window is not None),
            window=max(windows, default=0),
        )
        return cls(config, module, found)

    @override
    def merge_dense(self) -> "ModuleEncoder":
        """Return the same encoder, whose module no other encoder could compute."""
        return self

    @property
    def class_name(self) -> str:
        """The class of the module, or of the module that it wraps."""
        return type(getattr(self.module, "wrapped", self.module)).__qualname__

    @override
    def encode(self, tokens: Tensor, layout: AttentionLayout, token_types: Tensor | None = None) -> Tensor:
        if isinstance(layout, SingleSequence):
            return run_module(self.module, tokens)
        assert self.found is not None
        rows = PackedRows(self.found, layout, tokens.shape[0])
        tokens = self._cast_features(tokens)
        with rows:
            hidden = run_module(self.module, tokens)
        rows.finish()
        return hidden

    def _cast_features(self, tokens: Tensor) -> Tensor:
        """Return features in the precision of the module; token ids as they are."""
        if self.config.takes_tokens:
            return tokens
        floats = (each.dtype for each in self.module.parameters() if each.is_floating_point())
        return tokens.to(next(floats, tokens.dtype))


def check_max_tokens(config: EncoderConfig) -> None:
    """Check that sequences of several lengths can be compared."""
    if config.max_tokens < 4:
        raise ConfigError(f"max_tokens is {config.max_tokens}: it must be 4 or more for a module")


def _sequence_of_marks(config: EncoderConfig) -> Sequence:
    """Return a sequence of what may mark padding: the first and the last token ids, or rows of zeros among others."""
    n = config.max_tokens
    if config.takes_tokens:
        ids = np.arange(n) % config.vocabulary_size
        return np.where(np.arange(n) < n // 2, ids, config.vocabulary_size - 1 - ids)
    (rows,) = random_sequences(config, [n], seed=1)
    rows[::3] = 0
    return rows


def run_module(module: nn.Module, tokens: Tensor) -> Tensor:
    """Run a module on one sequence, token ids [n] or features [n, width], and return its rows [n, d].

    If the module needs a second argument, that is a mask of ones [1, n].
    """
    try:
        output = call_module(module, tokens[None], torch.ones(1, tokens.shape[0], dtype=torch.int64))
    except ConfigError as error:
        if "attention_mask" in inspect.signature(module.forward).parameters:
            raise NotPackableError("", f"without attention_mask, {error}") from error
        raise
    if output.ndim == 2 and output.shape[0] == 1:
        raise NotPackableError("", "the module gives a vector for each sequence, and no rows")
    if output.ndim != 3 or output.shape[0] != 1:
        raise ConfigError(
            f"the module gives {[*output.shape]} for one sequence of {tokens.shape[0]} tokens: let it return rows "
            f"[1, {tokens.shape[0]}, width]"
        )
    return output.squeeze(0)


def call_module(
    module: nn.Module, tokens: Tensor, mask: Tensor, token_types: Tensor | None = None, *, names_mask: bool = False
) -> Tensor:
    """Run a module on token ids [B, N], perhaps with token types, or features; return its only or first output.

    If the module needs a second argument, that is the mask [B, N], 1 for tokens and 0 for padding. With `names_mask`,
    it also gets the mask as its argument `attention_mask`, if it has one.
    """
    parameters = inspect.signature(module.forward).parameters
    arguments, named = [tokens], {} if token_types is None else {"token_type_ids": token_types}
    if _required(parameters.values()) > 1:
        arguments.append(mask)
    elif names_mask and "attention_mask" in parameters:
        named["attention_mask"] = mask
    try:
        with _as_written():
            output = module(*arguments, **named)
    except NotPackableError:
        raise
    except Exception as error:
        if torch.compiler.is_exporting():
            raise
        raise ConfigError(
            f"the module fails on one sequence of {tokens.shape[1]} tokens ({place(error)}: {error!r:.300}): let it "
            "take numbers in float32, or token ids below vocabulary_size, on the CPU, and all lengths up to max_tokens"
        ) from error
    if isinstance(output, Mapping):
        known = ("last_hidden_state", "logits", "pooler_output")
        output = next((output[name] for name in known if name in output), output)
    elif isinstance(output, tuple | list) and output:
        output = output[0]
    if not isinstance(output, Tensor):
        raise ConfigError(
            f"the module gives an object of the class {type(output).__name__}: let it return a tensor, or a tuple that "
            "begins with one"
        )
    return output


def _required(parameters: Iterable[inspect.Parameter]) -> int:
    """Return how many arguments a module needs."""
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    return sum(each.kind in kinds and each.default is each.empty for each in parameters)


@contextmanager
def _as_written() -> Iterator[None]:
    """Let a module compute what its code says, one function after another.

    The fast path of PyTorch's layers takes the exact gelu for its approximation. Compiled code would be compiled again
    for each way of running it, and would hide its attention.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
