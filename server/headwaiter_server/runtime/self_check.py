"""Check a graph on the device before it serves: compare its outputs for the golden inputs with PyTorch's.

Of a padded graph, also check that sequences beside a sequence do not change its results on this device.
"""

from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto.encoder_pb2 import ISOLATION_MIXED, ISOLATION_ONE_LENGTH, Isolation
from headwaiter_proto.rules.pooling import normalize_pooled
from headwaiter_server.runtime.batch_timing import attention_cells
from headwaiter_server.runtime.golden_reader import Golden
from headwaiter_server.runtime.graph import EncoderGraph, GraphOutputs
from headwaiter_server.runtime.isolation import batches_of
from headwaiter_server.runtime.numeric_tolerances import Difference, difference
from headwaiter_server.runtime.packing import PackedBatch, pack

# Maximum size of a batch of golden inputs: large enough to mix sequences, and no larger than usual batches of a CPU,
# because ONNX Runtime keeps the memory of the largest batch.
_GOLDEN_TOKENS = 512
_GOLDEN_CELLS = 1 << 18
# Most tokens of the golden inputs whose results are compared beside others.
_FEW_TOKENS = 128


def check_golden(
    graph: EncoderGraph, golden: Golden, *, normalized: bool, isolation: Isolation = ISOLATION_MIXED
) -> Difference:
    """Run the golden inputs in batches of mixed lengths and return the difference from PyTorch's outputs.

    `isolation` says which sequences may share a batch. If the model is `normalized`, scale pooled vectors to unit
    length before comparing them.
    """
    outputs = [graph.turn(partial(graph.run, batch, hidden=True)) for batch in _golden_batches(golden, isolation)]
    rows = [output.hidden for output in outputs if output.hidden is not None]
    hidden = np.concatenate(rows) if rows else None
    if hidden is not None and golden.hidden_rows is not None:
        hidden = hidden[golden.hidden_rows]
    pooled = [output.pooled for output in outputs if output.pooled is not None]
    vectors = normalize_pooled(np.concatenate(pooled), normalized=normalized) if pooled else None
    logits = [rows for output in outputs for rows in output.logits or ()] or None
    return difference(GraphOutputs(vectors, hidden, logits), golden.outputs)


def _golden_batches(golden: Golden, isolation: Isolation) -> Iterator[PackedBatch]:
    for part in batches_of(golden.sequences, [*map(len, golden.sequences)], isolation):
        batch: list[NDArray[np.generic]] = []
        for sequence in part:
            lengths = tuple(len(member) for member in (*batch, sequence))
            if batch and (sum(lengths) > _GOLDEN_TOKENS or attention_cells(lengths) > _GOLDEN_CELLS):
                yield pack(batch)
                batch = []
            batch.append(sequence)
        yield pack(batch)


def keeps_apart(graph: EncoderGraph, golden: Golden, isolation: Isolation) -> bool:
    """Return whether a golden input between two others keeps every bit of its results when these change.

    The others have the same lengths before and after the change, and lengths that `isolation` allows: ONE_LENGTH, or
    MIXED. A device that gives other bits for the same batch cannot be measured, and the answer is true.
    """
    by_length = sorted(golden.sequences, key=len)
    few = [each for each in by_length if len(each) <= _FEW_TOKENS] or by_length[:1]
    middle = few[len(few) // 2]
    before, after = (middle, middle) if isolation == ISOLATION_ONE_LENGTH else (few[-1], few[len(few) // 4])

    def results(before: NDArray[np.generic], after: NDArray[np.generic]) -> list[bytes]:
        batch = pack([before, middle, after])
        outputs = graph.turn(partial(graph.run, batch, hidden=True))
        rows = None if outputs.hidden is None else batch.split(outputs.hidden)
        of_middle = [kind[1] for kind in (outputs.pooled, rows, outputs.logits) if kind is not None]
        return [array.tobytes() for array in of_middle]

    first = results(before, after)
    return first != results(before, after) or first == results(before[::-1], after[::-1])
