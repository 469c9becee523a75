"""Check a graph on the device before it serves: its outputs for the golden inputs, and its largest inputs."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_proto.rules.images import min_tokens
from headwaiter_proto.rules.target import takes_target
from headwaiter_proto.rules.token_types import with_types, without_types
from headwaiter_server.runtime.batch_timing import attention_cells, made_up_sequence
from headwaiter_server.runtime.golden_reader import Golden
from headwaiter_server.runtime.graph import EncoderGraph, Outputs
from headwaiter_server.runtime.numeric_tolerances import Difference, difference, normalize_pooled
from headwaiter_server.runtime.packing import PackedBatch, pack

# Maximum size of a batch of golden inputs: large enough to mix sequences, small enough to take little memory.
_GOLDEN_TOKENS = 1024
_GOLDEN_CELLS = 1 << 20


def check_golden(graph: EncoderGraph, golden: Golden, *, normalized: bool) -> Difference:
    """Run the golden inputs in batches of mixed lengths and return the difference from PyTorch's outputs.

    If the model is `normalized`, scale pooled vectors to unit length before comparing them.
    """
    outputs = [graph.turn(partial(graph.run, batch, hidden=True)) for batch in _golden_batches(golden)]
    hidden = np.concatenate([output.hidden for output in outputs if output.hidden is not None])
    if golden.hidden_rows is not None:
        hidden = hidden[golden.hidden_rows]
    pooled = [output.pooled for output in outputs if output.pooled is not None]
    vectors = normalize_pooled(np.concatenate(pooled), normalized=normalized) if pooled else None
    logits = [rows for output in outputs for rows in output.logits or ()] or None
    return difference(Outputs(vectors, hidden, logits), golden.outputs)


def run_largest_numbers(graph: EncoderGraph, manifest: Manifest) -> None:
    """Run the largest token id, token type and position that the manifest allows; on the CPU, a wrong one fails."""
    sequence = made_up_sequence(manifest, min_tokens(manifest))
    if manifest.vocabulary_size:
        without_types(sequence)[:] = manifest.vocabulary_size - 1
        types = np.full(len(sequence), max(1, manifest.token_types) - 1)
        sequence = sequence if takes_target(manifest) else with_types(sequence, types, manifest)
    batch = graph.prepare(pack([sequence]))
    if batch.inputs is not None:
        # The graph looks up each position alone, so one token stands for a sequence of the maximum length.
        last = {
            name: np.full_like(array, manifest.max_tokens - 1) if name.endswith("positions") else array
            for name, array in batch.inputs.items()
        }
        batch = replace(batch, inputs=last)
    graph.turn(partial(graph.run, batch, hidden=True))


def _golden_batches(golden: Golden) -> Iterator[PackedBatch]:
    batch: list[NDArray[np.generic]] = []
    for sequence in golden.sequences:
        lengths = tuple(len(member) for member in (*batch, sequence))
        if batch and (sum(lengths) > _GOLDEN_TOKENS or attention_cells(lengths) > _GOLDEN_CELLS):
            yield pack(batch)
            batch = []
        batch.append(sequence)
    yield pack(batch)
