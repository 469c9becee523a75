"""Time a graph before it serves, on batches of many shapes."""

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_proto.rules.target import takes_target
from headwaiter_server.runtime.graph import EncoderGraph
from headwaiter_server.runtime.isolation import batches_of
from headwaiter_server.runtime.packing import PackedBatch, pack
from headwaiter_server.runtime.shape_buckets import MAX_BATCH_SEQUENCES

# Token budgets are compared on batches of typical sequences, which have this length.
TYPICAL_TOKENS = 48
# Each measurement of a budget runs at least this many tokens: a longer run is less sensitive to disturbances.
_COMPARED_TOKENS = 256
_BUDGET_ROUNDS = 9
_SHAPE_RUNS = 4
_MIN_SHAPES = 5
_MIN_HIDDEN_RUNS = 3
# This many attention cells take about as long as one token: a rough estimate to order shapes and predict their times.
_CELLS_PER_TOKEN = 256
# Stop trying larger token budgets after this many in a row were not faster than a smaller one.
_SLOWER_BUDGETS = 2

# The lengths of the sequences of a batch.
Lengths = tuple[int, ...]


def time_batch(graph: EncoderGraph, manifest: Manifest, lengths: Lengths, *, hidden: bool = False) -> float:
    """Run a batch of made-up sequences of the given lengths, and return the seconds of the run, without packing.

    Packing is left out because a server that serves packs a batch while the previous batch runs. On the CPU, the result
    is CPU time of the thread that runs the batch: other programs on the same cores lengthen the wall time of a batch by
    a random number of time slices, which hides how the time depends on the shape of the batch.
    """
    clock = time.perf_counter if graph.on_gpu else time.thread_time
    batch = graph.prepare(made_up_batch(manifest, lengths))

    def run() -> float:
        started_s = clock()
        graph.run(batch, hidden=hidden)
        return clock() - started_s

    return graph.turn(run)


def time_hidden_rows(graph: EncoderGraph, manifest: Manifest, lengths: Lengths, time_s: float) -> float:
    """Return how many seconds longer a batch takes if its hidden rows are returned too; 0 if they are no choice.

    Batches with and without hidden rows alternate for `time_s` seconds of device time; the fastest of each kind counts.
    """
    if not graph.hidden_is_optional:
        return 0.0
    without_s: list[float] = []
    with_s: list[float] = []
    while len(with_s) < _MIN_HIDDEN_RUNS or sum(without_s) + sum(with_s) < time_s:
        without_s.append(time_batch(graph, manifest, lengths))
        with_s.append(time_batch(graph, manifest, lengths, hidden=True))
    return max(0.0, min(with_s) - min(without_s))


def typical_batch(manifest: Manifest, tokens: int) -> Lengths:
    """Return the lengths of a batch of typical sequences that fill a budget of `tokens`; at least one sequence."""
    length = max(manifest.min_tokens, min(TYPICAL_TOKENS, manifest.max_tokens))
    batch = (length,) * max(1, min(tokens // length, MAX_BATCH_SEQUENCES))
    return batch if may_run(manifest, batch) else batch[:1]


def time_budgets(
    graph: EncoderGraph, manifest: Manifest, budgets: Sequence[int], time_s: float
) -> dict[int, list[float]]:
    """Measure the throughput of batches that fill different token budgets.

    The first round tries the budgets in order. It stops when a third of the time is used, when memory is exhausted, or
    when larger batches are not faster. Further rounds repeat the budgets of the first round.

    Args:
        graph: the graph to time.
        manifest: the manifest of the model.
        budgets: the token budgets, in rising order.
        time_s: device time for all rounds, in seconds. The first budget runs even if it takes longer.

    Returns:
        For each budget that ran, its tokens per second in each round.
    """
    spent_s = 0.0

    def tokens_per_s(budget: int) -> float:
        nonlocal spent_s
        lengths = typical_batch(manifest, budget)
        times = max(1, _COMPARED_TOKENS // budget)
        seconds = sum(time_batch(graph, manifest, lengths) for _ in range(times))
        spent_s += seconds
        return sum(lengths) * times / seconds

    rates: dict[int, list[float]] = {}
    for budget in budgets:
        try:
            # The first run of a shape takes longer.
            spent_s += time_batch(graph, manifest, typical_batch(manifest, budget))
            rates[budget] = [tokens_per_s(budget)]
        except Exception:
            # A batch that does not fit in memory ends the round. If the first batch fails, the graph cannot run at all.
            if not rates:
                raise
            break
        fastest = max(rates, key=lambda candidate: rates[candidate])
        # The next budget takes about as long as all smaller ones together. Keep two thirds of the time for more rounds.
        if fastest not in list(rates)[-_SLOWER_BUDGETS:] or 2 * spent_s > time_s / 3:
            break
    for _ in range(_BUDGET_ROUNDS - 1):
        for budget, measured in rates.items():
            measured.append(tokens_per_s(budget))
        if spent_s > time_s:
            break
    return rates


def time_shapes(
    graph: EncoderGraph, manifest: Manifest, tokens: int, cells: int, time_s: float
) -> dict[Lengths, float]:
    """Measure the run time of batches of many shapes, small shapes first.

    Larger shapes are left out when the time is used up or memory is exhausted; the smallest shapes always run.

    Args:
        graph: the graph to time.
        manifest: the manifest of the model.
        tokens: maximum tokens in a batch of several sequences.
        cells: maximum attention cells in a batch of several sequences.
        time_s: device time for all runs, in seconds.

    Returns:
        For each shape that ran, its shortest run in seconds.
    """
    spent_s = 0.0
    shapes = _shapes_to_time(manifest, tokens, cells)
    best_s: dict[Lengths, float] = {}
    for index, lengths in enumerate(shapes):
        if index >= _MIN_SHAPES:
            previous = shapes[index - 1]
            expected_s = best_s[previous] * _relative_cost(lengths) / _relative_cost(previous)
            if spent_s + expected_s > time_s:
                break
        try:
            best_s[lengths] = time_batch(graph, manifest, lengths)
            spent_s += best_s[lengths]
        except Exception:
            # As in time_budgets: if one of the smallest shapes fails, the graph cannot run at all.
            if index < _MIN_SHAPES:
                raise
            break
    for _ in range(_SHAPE_RUNS - 1):
        for lengths, fastest_s in best_s.items():
            if spent_s + fastest_s > time_s:
                return best_s
            seconds = time_batch(graph, manifest, lengths)
            spent_s += seconds
            best_s[lengths] = min(fastest_s, seconds)
    return best_s


def _shapes_to_time(manifest: Manifest, tokens: int, cells: int) -> list[Lengths]:
    """Return shapes that differ enough to fit every term of the cost model, the smallest first.

    The shapes are single sequences, batches of sequences of equal length (with different ratios of attention cells to
    tokens), and batches of long and short sequences (with more padding than tokens).
    """
    lengths = [n for n in (1, 4, 16, 64, 256, 1024, 4096) if n < manifest.max_tokens] + [manifest.max_tokens]
    shapes: list[Lengths] = [(n,) for n in lengths]
    for n in lengths[1:]:
        shapes += [(n,) * (tokens // n), (n,) * (tokens // (2 * n))]
        long = max(1, tokens // (2 * n))
        shapes += [(n,) * long + (n // 4,) * (4 * long), (n,) + (1,) * 15]
    least = max(1, manifest.min_tokens)
    valid = {tuple(max(least, n) for n in shape) for shape in shapes if shape}
    valid = {shape for shape in valid if may_run(manifest, shape)}
    fitting = [
        shape for shape in valid if len(shape) == 1 or (sum(shape) <= tokens and attention_cells(shape) <= cells)
    ]
    return sorted(fitting, key=lambda shape: (_relative_cost(shape), shape))


def may_run(manifest: Manifest, lengths: Lengths) -> bool:
    """Return whether sequences of these lengths may share a batch."""
    return len([*batches_of(lengths, lengths, manifest.padding.isolation)]) == 1


def attention_cells(lengths: Lengths) -> int:
    """Return the number of cells of gathered attention."""
    return len(lengths) * max(lengths) ** 2


def _relative_cost(lengths: Lengths) -> float:
    """Estimate the cost of a batch, in multiples of the cost of one token."""
    return sum(lengths) + attention_cells(lengths) / _CELLS_PER_TOKEN


def made_up_batch(manifest: Manifest, lengths: Lengths) -> PackedBatch:
    """Return a batch of made-up sequences of the given lengths."""
    return pack([_made_up_sequence(manifest, length) for length in lengths])


def _made_up_sequence(manifest: Manifest, length: int) -> NDArray[np.generic]:
    """Return a sequence of a given length that a model accepts, half of it a target if the model has targets."""
    is_target = (np.arange(length) >= length // 2).astype(np.int64)
    if manifest.vocabulary_size:
        ids = np.arange(length, dtype=np.int64) % manifest.vocabulary_size
        return np.stack([ids, is_target], axis=1) if takes_target(manifest) else ids
    rows = np.ones((length, manifest.feature_width), np.float32)
    if takes_target(manifest):
        rows[:, -1] = is_target
    return rows
