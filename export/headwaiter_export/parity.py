"""PyTorch's own answers, and how far a graph's are from them."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from headwaiter_export.attention_layout import Attending, SingleSequence
from headwaiter_export.config import EncoderConfig
from headwaiter_export.encoder import Encoder
from headwaiter_server.runtime.attention_weights import AttentionSelection, AttentionWeightsGraph
from headwaiter_server.runtime.graph import EncoderGraph, Outputs, Provider
from headwaiter_server.runtime.packing import pack
from headwaiter_server.runtime.tolerance import Difference, difference, largest_differences, normalize_pooled

Sequence = NDArray[np.generic]

SEQUENCES = 32
# The first of them have the lengths that are most likely to go wrong.
_EDGES = 4
# A sequence's attention holds heads · n² scores, and every server runs these sequences when it starts.
_LONGEST_TOKENS = 1024
# Attention is compared in all layers and heads at once, so sequences are few and not long.
_ATTENDED_SEQUENCES = 6
_LONGEST_ATTENDED_TOKENS = 128


@dataclass(frozen=True, eq=False)
class Reference:
    """Sequences, and what PyTorch answers to each of them alone.

    Attributes:
        config: the model's.
        sequences: token ids [n] or features [n, d_in].
        answers: pooled [1, d], of unit length where the model scales it, and hidden [n, d].
    """

    config: EncoderConfig
    sequences: list[Sequence]
    answers: list[Outputs]

    @classmethod
    def of(cls, encoder: Encoder) -> "Reference":
        """Compute an encoder's answers to random sequences of edge lengths and of lengths between."""
        sequences = draw_sequences(encoder.config, _lengths(encoder.config))
        return cls(encoder.config, sequences, answer(encoder, sequences))

    def shorter(self) -> "Reference":
        """Return the second quarter by length: little work, and still enough tokens to attend to each other."""
        by_length = sorted(range(len(self.sequences)), key=lambda i: len(self.sequences[i]))
        quarter = by_length[len(by_length) // 4 : len(by_length) // 2]
        return Reference(self.config, [self.sequences[i] for i in quarter], [self.answers[i] for i in quarter])


def draw_sequences(config: EncoderConfig, lengths: Iterable[int]) -> list[Sequence]:
    """Draw token ids, all of the vocabulary as likely, or features from a standard normal; always the same."""
    rng = np.random.default_rng(0)
    if config.takes_tokens:
        return [rng.integers(0, config.vocabulary_size, n) for n in lengths]
    return [rng.standard_normal((n, config.feature_width), np.float32) for n in lengths]


def measure(path: Path, provider: Provider, reference: Reference) -> Difference:
    """Run a graph over batches of every kind and compare it to PyTorch.

    Raises:
        ProviderUnavailable: the graph cannot run on this machine.
    """
    graph = EncoderGraph.open(path, provider)
    batches = _batches(len(reference.sequences))
    ran = [graph.run(pack([reference.sequences[i] for i in batch]), hidden=True) for batch in batches]
    expected = join([reference.answers[i] for batch in batches for i in batch])
    return difference(_finish(reference.config, join(ran)), expected)


@torch.inference_mode()
def measure_attention(path: Path, encoder: Encoder, reference: Reference) -> float:
    """Compare what a graph says of attention to PyTorch: the weights of all layers and heads, the contexts of a query.

    Returns:
        The largest difference, divided by the largest value of its kind and sequence where that exceeds 1, which no
        weight does. Infinity where an answer is not finite.
    """
    graph, config = AttentionWeightsGraph.open(path), encoder.config
    sequences = [each for each in reference.sequences if len(each) <= _LONGEST_ATTENDED_TOKENS]
    differences = []
    for sequence in sequences[:_ATTENDED_SEQUENCES]:
        query = len(sequence) // 2
        tokens = torch.from_numpy(sequence)
        lowering = Attending({config.token_input: tokens})
        expected = lowering.outputs(*encoder(tokens, lowering))
        actual = graph.run(sequence, AttentionSelection(range(config.layers), range(config.heads), query))
        assert actual.context is not None
        differences += [
            min(largest_differences(actual.weights, torch.stack(expected[::2]).numpy())),
            min(largest_differences(actual.context, torch.stack(expected[1::2])[:, :, query].numpy())),
        ]
    return max(differences)


def compare(encoder: Encoder, reference: Reference) -> Difference:
    """Run a changed encoder in PyTorch and compare it to the reference."""
    return difference(join(answer(encoder, reference.sequences)), join(reference.answers))


def join(outputs: list[Outputs]) -> Outputs:
    """Put answers end to end."""
    pooled = [each.pooled for each in outputs if each.pooled is not None]
    hidden = [each.hidden for each in outputs if each.hidden is not None]
    return Outputs(np.concatenate(pooled) if pooled else None, np.concatenate(hidden))


@torch.inference_mode()
def answer(encoder: Encoder, sequences: list[Sequence]) -> list[Outputs]:
    """Run an encoder in PyTorch over each sequence alone; pooled vectors have unit length where it scales them."""
    answers = []
    for sequence in sequences:
        pooled, hidden = encoder(torch.from_numpy(sequence), SingleSequence(len(sequence)))
        outputs = Outputs(None if pooled is None else pooled.numpy(), hidden.numpy())
        answers.append(_finish(encoder.config, outputs))
    return answers


def _lengths(config: EncoderConfig) -> list[int]:
    """Return the fewest tokens, one and two more, and the most, then lengths between, short ones more often."""
    shortest, longest = config.min_tokens, min(config.max_tokens, _LONGEST_TOKENS)
    drawn = np.exp(np.random.default_rng(1).uniform(math.log(shortest), math.log(longest), SEQUENCES - _EDGES))
    # The logarithm of a length may come back a little below it.
    between = np.maximum(drawn.astype(int), shortest)
    return [*(min(n, longest) for n in (shortest, shortest + 1, shortest + 2, longest)), *between.tolist()]


def _batches(sequences: int) -> list[list[int]]:
    """Each edge alone, all edges together, the others in mixed batches."""
    edges, others = list(range(_EDGES)), list(range(_EDGES, sequences))
    return [[edge] for edge in edges] + [edges] + [others[i : i + 8] for i in range(0, len(others), 8)]


def _finish(config: EncoderConfig, outputs: Outputs) -> Outputs:
    """Scale pooled vectors to unit length where the model says so."""
    if outputs.pooled is None:
        return outputs
    return Outputs(normalize_pooled(outputs.pooled, normalized=config.normalize), outputs.hidden)
