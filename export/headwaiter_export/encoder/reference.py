"""The reference: random sequences, and the outputs of an encoder in PyTorch for each of them.

`Reference.compute` runs the encoder one sequence at a time and without padding. Graphs and changed encoders are
compared with its outputs. Part of it becomes the golden inputs of a bundle, see `bundle/golden_writer.py`.
"""

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.encoder.attention_layout import SingleSequence
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_export.encoder.experts import Router
from headwaiter_proto.rules.pooling import normalize_pooled
from headwaiter_server.runtime.graph import GraphOutputs
from headwaiter_server.runtime.packing import Parts, pack

# Token ids [n], token ids and token types [n, 2], or features [n, feature_width]. With a target, a last column says
# whether a row belongs to the target, 1 or 0.
Sequence = NDArray[np.generic]
# Sequences of up to SHORT_TOKENS tokens.
SHORT_SEQUENCES = 32
# The first sequences have edge lengths, which are the most likely to reveal an error.
EDGE_SEQUENCES = 4
# Most tokens of these sequences. Time grows with n², so longer sequences are few, see `Reference.with_long_sequences`.
SHORT_TOKENS = 1024
# Most floating-point operations of one longer sequence: 8,192 tokens of a model like XLM-R-large need 1.2e13. The limit
# counts operations, not seconds, so that the bundle does not depend on the speed of the exporting machine.
_MOST_OPERATIONS = 2e13
# How often a sequence is drawn for an encoder that chooses experts, and the gap of scores that needs no other draw.
# In float32, scores differ by about 1e-6 of the largest score.
_DRAWS = 8
_CLEAR_GAP = 1e-5


@dataclass(frozen=True, eq=False)
class Reference:
    """Sequences, and PyTorch's outputs for each of them.

    Attributes:
        config: configuration of the encoder.
        sequences: token ids or features.
        outputs: for a sequence of n tokens, hidden [n, width], pooled [1, width], normalized if the encoder does so,
            and logits; None for those that the encoder does not give.
    """

    config: EncoderConfig
    sequences: list[Sequence]
    outputs: list[GraphOutputs]

    @classmethod
    def compute(cls, encoder: Encoder, layout: Callable[..., SingleSequence] = SingleSequence) -> "Reference":
        """Compute an encoder's outputs for random sequences of edge and random lengths, up to 1,024 tokens.

        `layout` makes the layout of a sequence of n tokens, or of a source of n and a target of m tokens.
        """
        sequences = clear_sequences(encoder, _sequence_lengths(encoder.config))
        return cls(encoder.config, sequences, run_in_pytorch(encoder, sequences, layout))

    def with_long_sequences(self, encoder: Encoder) -> "Reference":
        """Append a random sequence of each length in `long_lengths`, and the encoder's outputs for it."""
        sequences = clear_sequences(encoder, long_lengths(self.config))
        outputs = run_in_pytorch(encoder, sequences)
        return Reference(self.config, [*self.sequences, *sequences], [*self.outputs, *outputs])

    def only(self, keep: Callable[[int], bool]) -> "Reference":
        """Return the sequences whose number of tokens a predicate accepts, in the same order."""
        return self.select([i for i, sequence in enumerate(self.sequences) if keep(len(sequence))])

    def short_sequences(self) -> "Reference":
        """Return the second quarter of the sequences by length: they run fast, but have several tokens."""
        by_length = sorted(range(len(self.sequences)), key=lambda i: len(self.sequences[i]))
        return self.select(by_length[len(by_length) // 4 : len(by_length) // 2])

    def select(self, indices: list[int]) -> "Reference":
        """Return the sequences at some indices, in this order."""
        return Reference(self.config, [self.sequences[i] for i in indices], [self.outputs[i] for i in indices])


def long_lengths(config: EncoderConfig) -> list[int]:
    """Return the lengths above 1,024 tokens to check: they double up to the maximum, which is the last one.

    Lengths that take too many operations are left out.
    """
    doubling = itertools.takewhile(lambda n: n < config.max_tokens, (SHORT_TOKENS << i for i in itertools.count(1)))
    lengths = [*doubling, config.max_tokens] if config.max_tokens > SHORT_TOKENS else []
    return [n for n in lengths if operations(config, n) <= _MOST_OPERATIONS]


def operations(config: EncoderConfig, tokens: int) -> float:
    """Return the floating-point operations of linear layers, convolutions and attention for one sequence.

    A product and its addition are two operations. Masked pairs of tokens count, because the graphs compute their
    scores too.
    """
    attention_width = config.heads * (config.head_dim + config.value_dim)
    # Every token uses all experts: the graphs multiply those that it does not choose by 0.
    projected_width = config.heads * (config.head_dim + max(config.experts, 1) * config.value_dim)
    attention = 2 * config.d_model * projected_width + tokens * attention_width
    feed_forward = (3 if config.gated else 2) * config.width * config.inner_width
    convolution = config.convolution_kernel * config.d_model**2
    if config.waveform is not None:
        convolution += config.waveform.products_per_row(config.d_model)
    return 2.0 * tokens * (config.attention_layers * attention + feed_forward + convolution)


def clear_sequences(encoder: Encoder, lengths: Iterable[int]) -> list[Sequence]:
    """Draw random sequences in which rounding errors of float32 change no choice of experts.

    A sequence is drawn again if its smallest gap between the scores of a chosen and of another expert is below 1e-5 of
    the largest score. Of eight draws, that with the largest gap is taken: very long sequences may have no clear one.
    """
    sequences = random_sequences(encoder.config, lengths)
    return [_clear(encoder, each) for each in sequences] if encoder.config.chooses_experts else sequences


def _clear(encoder: Encoder, sequence: Sequence) -> Sequence:
    gap = _smallest_gap(encoder, sequence)
    for seed in range(1, _DRAWS):
        if gap >= _CLEAR_GAP:
            break
        (again,) = random_sequences(encoder.config, [len(sequence)], seed)
        gap_again = _smallest_gap(encoder, again)
        if gap_again > gap:
            gap, sequence = gap_again, again
    return sequence


def _smallest_gap(encoder: Encoder, sequence: Sequence) -> float:
    """Return the smallest gap of all routers of the encoder."""
    gaps: list[float] = []

    def add(router: Router, inputs: tuple[Tensor, ...]) -> None:
        gaps.append(router.smallest_gap(*inputs))

    hooks = [each.register_forward_pre_hook(add) for each in encoder.modules() if isinstance(each, Router)]
    try:
        run_in_pytorch(encoder, [sequence])
    finally:
        for hook in hooks:
            hook.remove()
    return min(gaps)


def random_sequences(config: EncoderConfig, lengths: Iterable[int], seed: int = 0) -> list[Sequence]:
    """Draw uniform token ids, or normally distributed features after `prefix_rows` rows of zeros.

    If the encoder has a `pad_id` or a `mask_id`, or its head a `pad_id`, a tenth of the token ids is this id. If it has
    an `expansion_id`, a random part of each sequence at its end has this id. Equal arguments give equal sequences.
    """
    rng = np.random.default_rng(seed)
    if config.takes_target:
        targets = [(n, int(rng.integers(1, n))) for n in lengths]
        return [sequence_of_parts(config, n - target, target, rng) for n, target in targets]
    if config.takes_tokens:
        largest = [config.vocabulary_size, config.token_types] if config.token_types else config.vocabulary_size
        drawn = (rng.integers(0, largest, (n, 2) if config.token_types else n) for n in lengths)
        wanted = (config.pad_id, config.mask_id, config.head.pad_id if config.head else None)
        marked = [_with_ids(ids, wanted, rng) for ids in drawn]
        if config.expansion_id is None:
            return marked
        return [_expanded(ids, config.expansion_id, rng) for ids in marked]
    sequences = [rng.standard_normal((n, config.feature_width), np.float32) for n in lengths]
    for rows in sequences:
        rows[: config.prefix_rows] = 0
    return [*sequences]


def sequence_of_parts(config: EncoderConfig, source: int, target: int, rng: np.random.Generator) -> Sequence:
    """Draw a sequence with a source and a target of these lengths."""
    is_target = np.arange(source + target) >= source
    if not config.takes_tokens:
        rows = rng.standard_normal((source + target, config.feature_width), np.float32)
        return np.column_stack([rows, is_target.astype(np.float32)])
    assert config.decoder is not None
    assert config.decoder.start_id is not None
    # The start token begins the target, and is nowhere before.
    ids: NDArray[Any] = rng.integers(0, config.vocabulary_size - 1, source + target)
    ids += ids >= config.decoder.start_id
    if config.pad_id is not None and config.pad_id != config.decoder.start_id:
        ids = _with_ids(ids, [config.pad_id], rng)
    ids[source] = config.decoder.start_id
    return np.column_stack([ids, is_target.astype(np.int64)])


def _with_ids(ids: Sequence, wanted: Iterable[int | None], rng: np.random.Generator) -> Sequence:
    """Return token ids of which a tenth is each wanted id: random ids of a large vocabulary would contain none."""
    for each in wanted:
        if each is not None:
            ids.reshape(len(ids), -1)[rng.random(len(ids)) < 0.1, 0] = each
    return ids


def _expanded(ids: Sequence, expansion_id: int, rng: np.random.Generator) -> Sequence:
    ids.reshape(len(ids), -1)[rng.integers(1, len(ids) + 1) :, 0] = expansion_id
    return ids


def concatenate(outputs: list[GraphOutputs]) -> GraphOutputs:
    """Concatenate the outputs of several batches."""
    pooled = [each.pooled for each in outputs if each.pooled is not None]
    hidden = [each.hidden for each in outputs if each.hidden is not None]
    logits = [rows for each in outputs for rows in each.logits or ()]
    return GraphOutputs(
        np.concatenate(pooled) if pooled else None, np.concatenate(hidden) if hidden else None, logits or None
    )


@torch.inference_mode()
def run_in_pytorch(
    encoder: Encoder, sequences: list[Sequence], layout: Callable[..., SingleSequence] = SingleSequence
) -> list[GraphOutputs]:
    """Run an encoder in PyTorch on each sequence alone; normalize the pooled vectors if the encoder does."""
    results = []
    for sequence in sequences:
        inputs = inputs_of(encoder.config, sequence)
        arrangement = layout(*map(len, (inputs[name] for name in ("tokens", "target") if name in inputs)))
        pooled, hidden, logits = encoder(layout=arrangement, **inputs)
        outputs = GraphOutputs(
            None if pooled is None else pooled.numpy(),
            None if hidden is None else hidden.numpy(),
            None if logits is None else [logits.numpy()],
        )
        results.append(normalize_outputs(encoder.config, outputs))
    return results


def inputs_of(config: EncoderConfig, sequence: Sequence) -> dict[str, Tensor]:
    """Return the token ids or features of a sequence, and its token types or target if it has them.

    The names are those of the arguments of `Encoder.forward`.
    """
    if config.takes_target:
        parts = Parts.of(pack([sequence]))
        return {"tokens": torch.from_numpy(parts.source.rows), "target": torch.from_numpy(parts.target.rows)}
    rows = torch.from_numpy(sequence)
    return {"tokens": rows[:, 0], "token_types": rows[:, 1]} if config.token_types else {"tokens": rows}


def _sequence_lengths(config: EncoderConfig) -> list[int]:
    """Return the edge lengths (minimum, one and two more, maximum), then log-uniform random lengths."""
    shortest, longest = config.min_tokens, min(config.max_tokens, SHORT_TOKENS)
    edges = [min(n, longest) for n in (shortest, shortest + 1, shortest + 2, longest)]
    rng = np.random.default_rng(1)
    drawn = np.exp(rng.uniform(math.log(shortest), math.log(longest), SHORT_SEQUENCES - EDGE_SEQUENCES))
    # exp(log(n)) may be slightly less than n.
    return [*edges, *np.maximum(drawn.astype(int), shortest).tolist()]


def normalize_outputs(config: EncoderConfig, outputs: GraphOutputs) -> GraphOutputs:
    """Scale pooled vectors to unit length if the encoder normalizes."""
    if outputs.pooled is None:
        return outputs
    return replace(outputs, pooled=normalize_pooled(outputs.pooled, normalized=config.normalize))
