"""Costs of the tests' bundles and tokenizers, so that servers and exports need not measure them again and again."""

from functools import cache

from tokenizers import Tokenizer

from headwaiter_server.models.calibration import batch_limits
from headwaiter_server.runtime.model import Model
from headwaiter_server.runtime.tokenizer_cost import cost_problem
from headwaiter_server.scheduling.cost import Calibration, CostModel


def known_cost(model: Model, token_cap: int = 0) -> Calibration:
    """Return a made-up cost of a model's batches on the CPU; servers learn the true one."""
    cost = CostModel(launch_s=2e-4, token_s=1e-6, padded_s=0, cell_s=0, hidden_row_s=1e-8)
    limits = batch_limits(model, min(1024, token_cap or 1024))
    return Calibration(cost, limits, service_tokens_per_s=1e6, error_ratio=0)


def known_cost_problem(tokenizer: Tokenizer) -> str | None:
    """Return what `cost_problem` says of a tokenizer; of equal tokenizers, only the first is measured in a process."""
    return _cost_problem(tokenizer.to_str())


@cache
def _cost_problem(content: str) -> str | None:
    return cost_problem(Tokenizer.from_str(content))
