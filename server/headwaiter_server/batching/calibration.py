"""Measures what batches of a model cost on this machine, and chooses how large they may be."""

from dataclasses import dataclass

from headwaiter_server.batching.cost import BatchLimits, CostModel, Sample, Shape, error_ratio, fit, smallest_budget
from headwaiter_server.runtime.graph import Provider
from headwaiter_server.runtime.model import Model
from headwaiter_server.runtime.warmup import run_once, time_budgets, time_shapes, usual_batch

# How long measuring may take; a minimal set of shapes runs whatever it takes.
_BUDGETS_S: dict[Provider, float] = {"cpu": 1.8, "cuda": 4.0}
_SHAPES_S = 1.2
_SMALLEST_BUDGET_TOKENS = 128
_LARGEST_BUDGET_TOKENS: dict[Provider, int] = {"cpu": 4096, "cuda": 65_536}
# Memory that the attention scores of a batch may take: heads · cells · 4 bytes.
_SCORES_BYTES: dict[Provider, int] = {"cpu": 64 << 20, "cuda": 2 << 30}


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
    usual = usual_batch(manifest, limits.tokens)
    return Calibration(cost, limits, sum(usual) / cost.seconds(*Shape.of(usual)), error_ratio(cost, samples))


def batch_limits(model: Model, tokens: int) -> BatchLimits:
    """Return the limits of batches of so many tokens: their scores stay within memory, and each sequence alone fits."""
    manifest = model.bundle.manifest
    return BatchLimits(tokens, max(_SCORES_BYTES[model.provider] // (4 * manifest.heads), manifest.max_tokens**2))


def warm_up(model: Model, limits: BatchLimits) -> None:
    """Run a batch of one sequence and a full one, so that the first requests find memory allocated.

    On a card a full one of the longest sequences too: what it takes is all that any batch takes.
    """
    manifest = model.bundle.manifest
    shapes = [usual_batch(manifest, tokens) for tokens in (1, limits.tokens)]
    if model.provider == "cuda":
        longest = manifest.max_tokens
        shapes.append((longest,) * max(1, min(limits.tokens // longest, limits.cells // longest**2)))
    for lengths in shapes:
        run_once(model.graph, manifest, lengths)


def _candidates(provider: Provider, token_cap: int) -> list[int]:
    """Return the budgets to compare: each twice the one before, up to the cap."""
    largest = min(token_cap or _LARGEST_BUDGET_TOKENS[provider], _LARGEST_BUDGET_TOKENS[provider])
    budgets = [min(_SMALLEST_BUDGET_TOKENS, largest)]
    while budgets[-1] * 2 <= largest:
        budgets.append(budgets[-1] * 2)
    return budgets
