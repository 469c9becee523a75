"""Computes reference results in PyTorch, and compares the results of graphs with them."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from headwaiter_export.attention_layout import AttentionWeightsLayout, SingleSequence
from headwaiter_export.config import EncoderConfig
from headwaiter_export.encoder import Encoder
from headwaiter_server.runtime.attention_weights import AttentionSelection, AttentionWeightsGraph
from headwaiter_server.runtime.graph import EncoderGraph, Outputs, Provider
from headwaiter_server.runtime.packing import pack
from headwaiter_server.runtime.tolerance import Difference, difference, largest_differences, normalize_pooled

Sequence = NDArray[np.generic]

SEQUENCES = 32
# The first sequences have edge lengths, which are the most likely to reveal an error.
_EDGES = 4
# Every server runs the golden inputs when it starts, and attention over n tokens computes heads · n² scores.
_LONGEST_TOKENS = 1024
# Attention weights of all layers and heads are large, so few and short sequences are compared.
_WEIGHTS_SEQUENCES = 6
_WEIGHTS_LONGEST_TOKENS = 128


@dataclass(frozen=True, eq=False)
class Reference:
    """Sequences, and PyTorch's outputs for each sequence alone.

    Attributes:
        config: configuration of the model.
        sequences: token ids [n] or features [n, d_in].
        outputs: pooled [1, d], of unit length if the model normalizes, and hidden [n, d].
    """

    config: EncoderConfig
    sequences: list[Sequence]
    outputs: list[Outputs]

    @classmethod
    def compute(cls, encoder: Encoder) -> "Reference":
        """Compute an encoder's outputs for random sequences of edge lengths and of lengths between."""
        sequences = random_sequences(encoder.config, _lengths(encoder.config))
        return cls(encoder.config, sequences, run_in_pytorch(encoder, sequences))

    def shorter(self) -> "Reference":
        """Return the second quarter by length: sequences that are quick to run but still have several tokens."""
        by_length = sorted(range(len(self.sequences)), key=lambda i: len(self.sequences[i]))
        quarter = by_length[len(by_length) // 4 : len(by_length) // 2]
        return Reference(self.config, [self.sequences[i] for i in quarter], [self.outputs[i] for i in quarter])


def random_sequences(config: EncoderConfig, lengths: Iterable[int]) -> list[Sequence]:
    """Draw uniform token ids, or features from a standard normal distribution; equal lengths give equal sequences."""
    rng = np.random.default_rng(0)
    if config.takes_tokens:
        return [rng.integers(0, config.vocabulary_size, n) for n in lengths]
    return [rng.standard_normal((n, config.feature_width), np.float32) for n in lengths]


def measure_graph(path: Path, provider: Provider, reference: Reference) -> Difference:
    """Run a graph over batches of edge lengths and of mixed lengths, and compare it with PyTorch.

    Raises:
        ProviderUnavailable: the graph cannot run on this machine.
    """
    graph = EncoderGraph.open(path, provider)
    batches = _batches(len(reference.sequences))
    outputs = [graph.run(pack([reference.sequences[i] for i in batch]), hidden=True) for batch in batches]
    expected = concatenate([reference.outputs[i] for batch in batches for i in batch])
    return difference(normalize_outputs(reference.config, concatenate(outputs)), expected)


@torch.inference_mode()
def measure_attention_weights(path: Path, encoder: Encoder, reference: Reference) -> float:
    """Compare a graph's attention weights of all layers and heads, and its contexts of one query, with PyTorch.

    Returns:
        The largest difference. Differences of contexts are divided by the largest context of the sequence if that
        exceeds 1. Infinity if a value is not finite.
    """
    graph, config = AttentionWeightsGraph.open(path), encoder.config
    sequences = [each for each in reference.sequences if len(each) <= _WEIGHTS_LONGEST_TOKENS]
    differences = []
    for sequence in sequences[:_WEIGHTS_SEQUENCES]:
        query = len(sequence) // 2
        tokens = torch.from_numpy(sequence)
        layout = AttentionWeightsLayout({config.token_input: tokens})
        expected = layout.outputs(*encoder(tokens, layout))
        actual = graph.run(sequence, AttentionSelection(range(config.layers), range(config.heads), query))
        assert actual.context is not None
        differences += [
            min(largest_differences(actual.weights, torch.stack(expected[::2]).numpy())),
            min(largest_differences(actual.context, torch.stack(expected[1::2])[:, :, query].numpy())),
        ]
    return max(differences)


def compare_encoder(encoder: Encoder, reference: Reference) -> Difference:
    """Run a changed encoder in PyTorch and compare it with the reference."""
    return difference(concatenate(run_in_pytorch(encoder, reference.sequences)), concatenate(reference.outputs))


def concatenate(outputs: list[Outputs]) -> Outputs:
    """Concatenate the outputs of several batches or sequences."""
    pooled = [each.pooled for each in outputs if each.pooled is not None]
    hidden = [each.hidden for each in outputs if each.hidden is not None]
    return Outputs(np.concatenate(pooled) if pooled else None, np.concatenate(hidden))


@torch.inference_mode()
def run_in_pytorch(encoder: Encoder, sequences: list[Sequence]) -> list[Outputs]:
    """Run an encoder in PyTorch over each sequence alone; pooled vectors have unit length if the model normalizes."""
    results = []
    for sequence in sequences:
        pooled, hidden = encoder(torch.from_numpy(sequence), SingleSequence(len(sequence)))
        outputs = Outputs(None if pooled is None else pooled.numpy(), hidden.numpy())
        results.append(normalize_outputs(encoder.config, outputs))
    return results


def _lengths(config: EncoderConfig) -> list[int]:
    """Return the edge lengths (minimum, one and two more, maximum), then random lengths, short ones more often."""
    shortest, longest = config.min_tokens, min(config.max_tokens, _LONGEST_TOKENS)
    drawn = np.exp(np.random.default_rng(1).uniform(math.log(shortest), math.log(longest), SEQUENCES - _EDGES))
    # Rounding may give a value slightly below the minimum.
    between = np.maximum(drawn.astype(int), shortest)
    return [*(min(n, longest) for n in (shortest, shortest + 1, shortest + 2, longest)), *between.tolist()]


def _batches(sequences: int) -> list[list[int]]:
    """Return the indices of each batch: each edge alone, all edges together, then the others in mixed batches."""
    edges, others = list(range(_EDGES)), list(range(_EDGES, sequences))
    return [[edge] for edge in edges] + [edges] + [others[i : i + 8] for i in range(0, len(others), 8)]


def normalize_outputs(config: EncoderConfig, outputs: Outputs) -> Outputs:
    """Scale pooled vectors to unit length if the model normalizes."""
    if outputs.pooled is None:
        return outputs
    return Outputs(normalize_pooled(outputs.pooled, normalized=config.normalize), outputs.hidden)
