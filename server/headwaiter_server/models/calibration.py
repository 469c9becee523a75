"""Measure the cost of a model's batches on this machine, and choose the batch limits."""

import logging
import sys
from dataclasses import replace
from typing import NamedTuple

from headwaiter_proto.encoder_pb2 import ISOLATION_ONE_LENGTH, ISOLATION_ONE_SEQUENCE
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_server.runtime.attention_routes import PADDED_LENGTH_STEP
from headwaiter_server.runtime.batch_timing import (
    TYPICAL_TOKENS,
    Lengths,
    made_up_batch,
    may_run,
    time_batch,
    time_budgets,
    time_hidden_rows,
    time_shapes,
    typical_batch,
)
from headwaiter_server.runtime.errors import LongestSequenceRefused, one_line
from headwaiter_server.runtime.graph import GraphOutputs, Provider
from headwaiter_server.runtime.memory import cell_values, padded_width
from headwaiter_server.runtime.model import Model
from headwaiter_server.runtime.numeric_tolerances import difference, violation
from headwaiter_server.runtime.shape_buckets import GRAPH_TOKENS, MAX_BATCH_SEQUENCES, graph_batches
from headwaiter_server.scheduling.cost import BatchLimits, Calibration, Sample, Shape, error_ratio, fit, smallest_budget

log = logging.getLogger(__name__)

# Seconds for measuring token budgets and shapes. The smallest budget and shape are measured even if that takes longer.
_BUDGETS_S: dict[Provider, float] = {"cpu": 1.8, "cuda": 4.0}
_SHAPES_S = 1.2
_HIDDEN_ROWS_S = 0.2
# The fastest of this many runs counts when a CUDA graph is compared with ordinary runs.
_COMPARED_RUNS = 9
_SMALLEST_BUDGET_TOKENS = 128
_LARGEST_BUDGET_TOKENS: dict[Provider, int] = {"cpu": 4096, "cuda": 65_536}
# Memory for the attention scores of a batch, if attention computes padding. Other kernels store no scores.
_SCORES_BYTES: dict[Provider, int] = {"cpu": 64 << 20, "cuda": 2 << 30}
# Bytes of one score. On CUDA, the scores before and after the softmax are two float32 arrays, for the whole batch.
_SCORE_BYTES: dict[Provider, int] = {"cpu": 4, "cuda": 8}
# Memory for the padded rows of a batch in float32: B·N · width · 4 bytes. Pooling holds up to three such arrays.
_PADDED_BYTES: dict[Provider, int] = {"cpu": 64 << 20, "cuda": 512 << 20}


class KnownCost(NamedTuple):
    """What the batches of a version have taught, and the conditions under which it holds for another version."""

    conditions: tuple[object, ...]
    calibration: Calibration


def check_longest_sequence(model: Model) -> None:
    """Run one sequence of the maximum length on a GPU; on the CPU, the length of a sequence is not limited.

    Raises:
        LongestSequenceRefused: the sequence cannot run.
    """
    if model.provider == "cpu":
        return
    longest = model.bundle.manifest.max_tokens
    try:
        time_batch(model.graph, model.bundle.manifest, (longest,))
    except Exception as error:
        raise LongestSequenceRefused(
            f"one sequence of {longest:,} tokens, the longest that {model.bundle.manifest.name} accepts, cannot run "
            f"({one_line(error)}): lower --max-sequence-tokens, or free GPU memory"
        ) from error


def calibrate(model: Model, token_cap: int, known: Calibration | None = None, *, warms_up: bool = True) -> Calibration:
    """Measure the cost of a model's batches, unless it is known, and run full batches.

    Args:
        model: the model to measure.
        token_cap: largest token budget; 0 for the provider's default.
        known: what another version with the same graph has learnt; None if there is no such version. If that version
            had another `token_cap`, the cost is measured.
        warms_up: whether to capture CUDA graphs, to run full batches, and to halve the limits if they fail.

    Raises:
        LongestSequenceRefused: one longest sequence cannot run on the GPU.
    """
    check_longest_sequence(model)
    if warms_up:
        capture_cuda_graphs(model)
    if known is None or known.token_cap != token_cap:
        calibration = measure_cost(model, token_cap)
    else:
        # On a GPU, the budget of the version before may be lower for want of memory, and no later batch may raise it.
        tokens = known.measured_budget_tokens if model.provider == "cuda" else known.limits.tokens
        calibration = replace(known, limits=batch_limits(model, tokens), remembered=True)
    return replace(calibration, limits=warm_up(model, calibration.limits)) if warms_up else calibration


def capture_cuda_graphs(model: Model) -> None:
    """Capture CUDA graphs for small batches, as long as they are faster than ordinary runs on this device.

    Of the batches that a graph of T tokens runs, the smallest one gets the most dummies. If its graph is faster than an
    ordinary run, so are the others. A failure costs the graphs, and not the model.

    The outputs of a graph must agree with those of an ordinary run as closely as those of an ordinary run must agree
    with PyTorch's.
    """
    graph, manifest = model.graph, model.bundle.manifest
    if graph.cuda_graphs is None:
        return

    def disagreement(replayed: GraphOutputs, ordinary: GraphOutputs) -> str | None:
        measured = difference(replayed, ordinary)
        if not violation(measured, model.precision):
            return None
        largest = max(measured.pooled_max_abs, measured.logits_max_abs)
        return f"largest difference {largest:.2e}, smallest cosine {measured.min_cosine:.6f}"

    def fastest_ms(lengths: Lengths) -> float:
        return 1000 * min(time_batch(graph, manifest, lengths) for _ in range(_COMPARED_RUNS))

    compared = []
    try:
        for tokens in GRAPH_TOKENS:
            lengths = _smallest_batch(manifest, tokens)
            if not lengths:
                continue
            ordinary_ms = fastest_ms(lengths)
            shape = graph.capture(made_up_batch(manifest, lengths), disagreement)
            graph_ms = fastest_ms(lengths)
            compared.append(f"{sum(lengths)} tokens {graph_ms:.2f} instead of {ordinary_ms:.2f} ms")
            if graph_ms >= ordinary_ms:
                graph.cuda_graphs.drop(shape)
                break
            for others in graph_batches(tokens, manifest.max_tokens):
                graph.capture(made_up_batch(manifest, others), disagreement)
        for check in graph.cuda_graphs.checks():
            graph.turn(check)
    except Exception as error:  # noqa: BLE001 - whatever fails, the model runs without graphs
        graph.cuda_graphs.drop()
        log.warning("%s runs without CUDA graphs: %s", manifest.name, one_line(error))
        return
    log.info("%s has %d CUDA graphs: %s", manifest.name, len(graph.cuda_graphs), ", ".join(compared))


def _smallest_batch(manifest: Manifest, tokens: int) -> Lengths:
    """Return the lengths of a batch with just over half of the tokens; empty if no sequences have this size."""
    fewest = tokens // 2 + 1
    length = max(manifest.max_tokens if manifest.fixed_length else manifest.min_tokens, min(TYPICAL_TOKENS, fewest))
    length = min(length, manifest.max_tokens)
    sequences = -(-fewest // length)
    return (length,) * sequences if length * sequences <= tokens else ()


def measure_cost(model: Model, token_cap: int = 0) -> Calibration:
    """Choose the token budget, and fit the cost model to batches within this budget; takes a few seconds.

    A `token_cap` of 0 stands for the provider's largest token budget.
    """
    manifest = model.bundle.manifest
    rates = time_budgets(
        model.graph, manifest, candidate_budgets(model.provider, token_cap), _BUDGETS_S[model.provider]
    )
    limits = batch_limits(model, smallest_budget(rates))
    timed = time_shapes(model.graph, manifest, limits.tokens, limits.cells, _SHAPES_S)
    samples = [Sample(Shape.of(lengths), seconds) for lengths, seconds in timed.items()]
    cost = fit(samples, variable_length=model.graph.variable_length)
    typical = typical_batch(manifest, limits.tokens)
    cost.hidden_row_s = time_hidden_rows(model.graph, manifest, typical, _HIDDEN_ROWS_S) / sum(typical)
    rate = sum(typical) / cost.seconds(*Shape.of(typical))
    return Calibration(
        cost, limits, rate, error_ratio(cost, samples), measured_budget_tokens=limits.tokens, token_cap=token_cap
    )


def largest_budget(model: Model, limits: BatchLimits, token_cap: int) -> int:
    """Return the largest token budget that serving may lead to.

    A GPU has memory reserved for batches within its `limits`, and not for larger ones.
    """
    return limits.tokens if model.provider == "cuda" else candidate_budgets(model.provider, token_cap)[-1]


def batch_limits(model: Model, tokens: int) -> BatchLimits:
    """Return the batch limits for a token budget, with as much padding as memory allows.

    On the CPU, batches may have as many attention cells as the longest sequence. On a GPU they may not: rounded up to
    shape buckets, they could have more scores than the kernels can compute.
    """
    manifest, longest, provider = model.bundle.manifest, model.bundle.manifest.max_tokens, model.provider
    cells = _SCORES_BYTES[provider] // (_SCORE_BYTES[provider] * cell_values(manifest))
    if provider == "cpu":
        cells = max(cells, longest**2)
    elif model.graph.variable_length:
        cells = sys.maxsize
    padded_tokens = _PADDED_BYTES[provider] // (4 * padded_width(manifest))
    sequences = MAX_BATCH_SEQUENCES if provider == "cuda" else sys.maxsize
    if manifest.sparse:
        sequences = min(sequences, max(1, _PADDED_BYTES[provider] // (4 * manifest.width)))
    isolation = manifest.padding.isolation
    if isolation == ISOLATION_ONE_SEQUENCE:
        sequences = 1
    step = PADDED_LENGTH_STEP if provider == "cuda" else 1
    return BatchLimits(
        tokens,
        cells,
        max(padded_tokens, longest, tokens),
        sequences,
        step,
        one_length=isolation == ISOLATION_ONE_LENGTH,
    )


def warm_up(model: Model, limits: BatchLimits) -> BatchLimits:
    """Run the smallest and the largest batches, to allocate memory before the first request.

    Returns:
        The limits, halved until the largest batches fit in memory.

    Raises:
        Exception: the runtime's error, if a typical sequence or the smallest full batch cannot run.
    """
    manifest = model.bundle.manifest
    time_batch(model.graph, manifest, typical_batch(manifest, 1))
    while True:
        try:
            for lengths in largest_batches(model, limits):
                time_batch(model.graph, manifest, lengths)
        except Exception as error:
            if limits.tokens < 2 * _SMALLEST_BUDGET_TOKENS:
                raise
            reason = one_line(error)
            message = "full batches of %s with %d tokens fail, so the limits are halved: %s"
            log.warning(message, manifest.name, limits.tokens, reason)
            limits = limits.scaled(0.5)
        else:
            return limits


def largest_batches(model: Model, limits: BatchLimits) -> list[Lengths]:
    """Return full batches to warm up with.

    On the CPU, this is one batch of sequences of typical length. A GPU keeps its memory allocated, so three more
    batches reserve as much memory as any later batch needs: as many of the longest sequences as fit, the most padded
    tokens, and the most attention cells. The last two hold one long and many short sequences.
    """
    manifest = model.bundle.manifest
    typical = typical_batch(manifest, limits.tokens)
    if model.provider == "cpu":
        return [typical]
    longest, shortest = manifest.max_tokens, max(1, manifest.min_tokens)
    longest_sequences = (longest,) * _most_sequences(limits, longest, longest)

    def padded_tokens(long: int) -> int:
        return _most_sequences(limits, long, shortest) * limits.padded_length(long)

    def cells(long: int) -> int:
        return padded_tokens(long) * limits.padded_length(long)

    lengths = {*range(limits.length_step, longest, limits.length_step), longest}
    candidates = [length for length in lengths if length >= shortest]
    batches = [typical, longest_sequences]
    for long in (max(candidates, key=padded_tokens), max(candidates, key=cells)):
        others = _most_sequences(limits, long, shortest) - 1
        short = min(long, (limits.tokens - long) // max(1, others))
        batches.append((long, *(short,) * others))
    return [batch for batch in batches if may_run(manifest, batch)]


def _most_sequences(limits: BatchLimits, long: int, short: int) -> int:
    """Return how many sequences a batch holds if one has `long` tokens and the others `short` tokens."""
    padded_length = limits.padded_length(long)
    return max(
        1,
        min(
            1 + (limits.tokens - long) // short,
            limits.padded_tokens // padded_length,
            limits.cells // padded_length**2,
            limits.sequences,
        ),
    )


def candidate_budgets(provider: Provider, token_cap: int) -> list[int]:
    """Return the token budgets to compare: each is twice the previous one, up to the cap."""
    largest = min(token_cap or _LARGEST_BUDGET_TOKENS[provider], _LARGEST_BUDGET_TOKENS[provider])
    budgets = [min(_SMALLEST_BUDGET_TOKENS, largest)]
    while budgets[-1] * 2 <= largest:
        budgets.append(budgets[-1] * 2)
    return budgets
