"""Runs a graph before it serves: on the golden inputs to check it, on a grid of shapes to time it."""

import time
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_server.runtime.bundle import Golden
from headwaiter_server.runtime.graph import EncoderGraph, Outputs
from headwaiter_server.runtime.packing import PackedBatch, pack
from headwaiter_server.runtime.tolerance import Difference, difference, normalize_pooled

# Golden inputs run together up to these sizes, so that the check sees real batches and takes little memory.
_GOLDEN_TOKENS = 1024
_GOLDEN_CELLS = 1 << 20
# Token budgets are compared on sequences of a usual length, which fills no budget: neither do requests. And on so many
# tokens at least, so that a short disturbance does not decide.
_USUAL_TOKENS = 48
_COMPARED_TOKENS = 256
_BUDGET_ROUNDS = 9
_SHAPE_RUNS = 4
_FEWEST_SHAPES = 5
# How many attention cells cost about what a token costs; only the order of the shapes depends on it.
_CELLS_OF_A_TOKEN = 256
# Larger budgets are not looked at once so many in a row were no faster than the fastest before them.
_NO_FASTER = 2


Lengths = tuple[int, ...]


def check_golden(graph: EncoderGraph, golden: Golden, *, normalized: bool) -> Difference:
    """Run the golden inputs in mixed batches and compare the answers to PyTorch's."""
    answers = [graph.run(batch, hidden=True) for batch in _golden_batches(golden)]
    hidden = np.concatenate([answer.hidden for answer in answers if answer.hidden is not None])
    pooled = [answer.pooled for answer in answers if answer.pooled is not None]
    finished = normalize_pooled(np.concatenate(pooled), normalized=normalized) if pooled else None
    return difference(Outputs(finished, hidden), golden.answers)


def _golden_batches(golden: Golden) -> Iterator[PackedBatch]:
    batch: list[NDArray[np.generic]] = []
    for sequence in golden.sequences:
        lengths = [len(member) for member in (*batch, sequence)]
        if batch and (sum(lengths) > _GOLDEN_TOKENS or len(lengths) * max(lengths) ** 2 > _GOLDEN_CELLS):
            yield pack(batch)
            batch = []
        batch.append(sequence)
    yield pack(batch)


def time_batch(graph: EncoderGraph, manifest: Manifest, lengths: Lengths) -> float:
    """Pack and run a batch of made-up sequences of these lengths, without hidden rows; return the seconds it took."""
    sequences = [_example(manifest, length) for length in lengths]
    started_s = time.perf_counter()
    graph.run(pack(sequences), hidden=False)
    return time.perf_counter() - started_s


def typical_batch(manifest: Manifest, tokens: int) -> Lengths:
    """Return as many sequences of the usual length as so many tokens hold, but at least one."""
    length = min(_USUAL_TOKENS, manifest.max_tokens)
    return (length,) * max(1, tokens // length)


def time_budgets(
    graph: EncoderGraph, manifest: Manifest, budgets: Sequence[int], time_s: float
) -> dict[int, list[float]]:
    """Measure the tokens a second at budgets of rising size, in rounds that run each of them once.

    The first round climbs until time or memory is short, or larger batches are no faster; the others repeat it.

    Returns:
        For each budget that was reached, one rate a round.
    """

    def rate(budget: int) -> float:
        lengths = typical_batch(manifest, budget)
        times = max(1, _COMPARED_TOKENS // budget)
        return sum(lengths) * times / sum(time_batch(graph, manifest, lengths) for _ in range(times))

    started_s = time.perf_counter()
    rates: dict[int, list[float]] = {}
    for budget in budgets:
        try:
            time_batch(graph, manifest, typical_batch(manifest, budget))  # a shape's first run takes longer
            rates[budget] = [rate(budget)]
        except Exception:
            # What does not fit in memory is no candidate; what cannot run at all is the caller's affair.
            if not rates:
                raise
            break
        fastest = max(rates, key=lambda one: rates[one])
        climbed_s = time.perf_counter() - started_s
        # The next budget takes about as long as all before it, and there shall be rounds to compare them in.
        if fastest not in list(rates)[-_NO_FASTER:] or 2 * climbed_s > time_s / 3:
            break
    for _ in range(_BUDGET_ROUNDS - 1):
        for budget, measured in rates.items():
            measured.append(rate(budget))
        if time.perf_counter() - started_s > time_s:
            break
    return rates


def time_shapes(
    graph: EncoderGraph, manifest: Manifest, tokens: int, cells: int, time_s: float
) -> dict[Lengths, float]:
    """Measure the seconds of batches of many shapes within so many tokens and cells, each the best of a few runs.

    One sequence alone may have more. Small shapes come first; large ones are left out where time or memory is short.
    """
    started_s = time.perf_counter()
    shapes = _grid(manifest, tokens, cells)
    best_s: dict[Lengths, float] = {}
    for place, lengths in enumerate(shapes):
        if place >= _FEWEST_SHAPES:
            before = shapes[place - 1]
            expected_s = best_s[before] * _size(lengths) / _size(before)
            if time.perf_counter() - started_s + expected_s > time_s:
                break
        try:
            best_s[lengths] = time_batch(graph, manifest, lengths)
        except Exception:
            # As with budgets, what cannot run at all is the caller's affair.
            if place < _FEWEST_SHAPES:
                raise
            break
    for _ in range(_SHAPE_RUNS - 1):
        for lengths, fastest_s in best_s.items():
            if time.perf_counter() - started_s + fastest_s > time_s:
                return best_s
            best_s[lengths] = min(fastest_s, time_batch(graph, manifest, lengths))
    return best_s


def _grid(manifest: Manifest, tokens: int, cells: int) -> list[Lengths]:
    """Return shapes that tell the terms of a cost apart, the smallest first.

    One sequence alone; equal lengths, which have many cells or few for their tokens; and long sequences among short
    ones, which have more padding than tokens.
    """
    lengths = [n for n in (1, 4, 16, 64, 256, 1024, 4096) if n < manifest.max_tokens] + [manifest.max_tokens]
    shapes: list[Lengths] = [(n,) for n in lengths]
    for n in lengths[1:]:
        shapes += [(n,) * (tokens // n), (n,) * (tokens // (2 * n))]
        long = max(1, tokens // (2 * n))
        shapes += [(n,) * long + (n // 4,) * (4 * long), (n,) + (1,) * 15]
    fewest = max(1, manifest.min_tokens)
    valid = {tuple(max(fewest, n) for n in shape) for shape in shapes if shape}
    fitting = [shape for shape in valid if len(shape) == 1 or (sum(shape) <= tokens and _cells(shape) <= cells)]
    return sorted(fitting, key=lambda shape: (_size(shape), shape))


def _cells(lengths: Lengths) -> int:
    return len(lengths) * max(lengths) ** 2


def _size(lengths: Lengths) -> float:
    """Return about what a batch costs, in tokens."""
    return sum(lengths) + _cells(lengths) / _CELLS_OF_A_TOKEN


def _example(manifest: Manifest, length: int) -> NDArray[np.generic]:
    if manifest.vocabulary_size:
        return np.arange(length, dtype=np.int64) % manifest.vocabulary_size
    return np.ones((length, manifest.feature_width), np.float32)
