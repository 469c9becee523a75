"""Measures what batches of a model cost on this machine, and chooses how large they may be."""

import logging
from dataclasses import dataclass

from headwaiter_server.runtime.graph import Provider
from headwaiter_server.runtime.model import Model
from headwaiter_server.runtime.warmup import Lengths, time_batch, time_budgets, time_shapes, typical_batch
from headwaiter_server.scheduling.cost import BatchLimits, CostModel, Sample, Shape, error_ratio, fit, smallest_budget

log = logging.getLogger(__name__)

# How long measuring may take; a minimal set of shapes runs whatever it takes.
_BUDGETS_S: dict[Provider, float] = {"cpu": 1.8, "cuda": 4.0}
_SHAPES_S = 1.2
_SMALLEST_BUDGET_TOKENS = 128
_LARGEST_BUDGET_TOKENS: dict[Provider, int] = {"cpu": 4096, "cuda": 65_536}
# Memory that the attention scores of a batch may take: heads · cells · 4 bytes. In 1 GiB, 12 heads would hold a batch
# with one sequence of 512 tokens to 85 sequences, some 10,000 tokens of usual texts: too few for a card. 16,384 tokens
# of 128 sequences take 33.6 million cells, 1.6 GB.
_SCORES_BYTES: dict[Provider, int] = {"cpu": 64 << 20, "cuda": 2 << 30}
# Memory that its rows may take once they are padded, in float32: B·N · width · 4 bytes. Pooling holds up to three such.
_PADDED_BYTES: dict[Provider, int] = {"cpu": 64 << 20, "cuda": 512 << 20}


@dataclass(frozen=True)
class Calibration:
    """What was measured of a model on this machine.

    Attributes:
        cost: the seconds a batch takes.
        limits: how large it may be.
        service_tokens_per_s: how many tokens a second full batches of a usual length get through.
        error_ratio: median of |predicted − measured| / measured over the shapes that were timed.
        remembered: whether it was measured at an earlier start.
    """

    cost: CostModel
    limits: BatchLimits
    service_tokens_per_s: float
    error_ratio: float
    remembered: bool = False


def measure_cost(model: Model, token_cap: int = 0) -> Calibration:
    """Choose the token budget and fit the cost of batches within it; takes some seconds.

    Args:
        model: what to measure.
        token_cap: largest token budget; 0 leaves that to the provider.
    """
    manifest = model.bundle.manifest
    rates = time_budgets(model.graph, manifest, _candidates(model.provider, token_cap), _BUDGETS_S[model.provider])
    limits = batch_limits(model, smallest_budget(rates))
    timed = time_shapes(model.graph, manifest, limits.tokens, limits.cells, _SHAPES_S)
    samples = [Sample(Shape.of(lengths), seconds) for lengths, seconds in timed.items()]
    cost = fit(samples, variable_length=model.graph.variable_length)
    usual = typical_batch(manifest, limits.tokens)
    return Calibration(cost, limits, sum(usual) / cost.seconds(*Shape.of(usual)), error_ratio(cost, samples))


def batch_limits(model: Model, tokens: int) -> BatchLimits:
    """Return the limits of batches of so many tokens, whose padding fits in memory; one sequence alone always fits."""
    manifest, longest = model.bundle.manifest, model.bundle.manifest.max_tokens
    cells = _SCORES_BYTES[model.provider] // (4 * manifest.heads)
    padded_tokens = _PADDED_BYTES[model.provider] // (4 * manifest.width)
    return BatchLimits(tokens, max(cells, longest**2), max(padded_tokens, longest, tokens))


def warm_up(model: Model, limits: BatchLimits) -> BatchLimits:
    """Run a batch of one sequence and the largest, so that the first requests find memory allocated.

    Returns:
        The limits, halved until such batches find memory.

    Raises:
        Exception: what the runtime raises where one sequence, or the smallest of such batches, cannot run.
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
            why = " ".join(str(error).split())
            log.warning("full batches of %d tokens cannot run, half of that is tried: %s", limits.tokens, why)
            limits = limits.halved()
        else:
            return limits


def largest_batches(model: Model, limits: BatchLimits) -> list[Lengths]:
    """Return full batches to warm up with.

    On the CPU, one of a usual length. A card's memory stays allocated, so there two more stand for all that may come:
    as many of the longest sequences as fit, and one sequence among shorter ones, with the most padding that may be: as
    many tokens, padded tokens and cells as the limits have, or nearly.
    """
    manifest = model.bundle.manifest
    usual = typical_batch(manifest, limits.tokens)
    if model.provider == "cpu":
        return [usual]
    longest, shortest = manifest.max_tokens, max(1, manifest.min_tokens)
    longest_ones = (longest,) * max(1, min(limits.tokens // longest, limits.cells // longest**2))
    # At this length, both limits of padding allow the same number of sequences.
    long = max(shortest, min(longest, limits.cells // limits.padded_tokens, limits.tokens))
    short_ones = min(limits.padded_tokens // long - 1, (limits.tokens - long) // shortest)
    short = min(long, (limits.tokens - long) // max(1, short_ones))
    return [usual, longest_ones, (long, *(short,) * short_ones)]


def _candidates(provider: Provider, token_cap: int) -> list[int]:
    """Return the budgets to compare: each twice the one before, up to the cap."""
    largest = min(token_cap or _LARGEST_BUDGET_TOKENS[provider], _LARGEST_BUDGET_TOKENS[provider])
    budgets = [min(_SMALLEST_BUDGET_TOKENS, largest)]
    while budgets[-1] * 2 <= largest:
        budgets.append(budgets[-1] * 2)
    return budgets
