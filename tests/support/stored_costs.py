"""Costs of the tests' bundles and tokenizers, so that servers and exports need not measure them again and again."""

import os
from functools import cache
from pathlib import Path

from tokenizers import Tokenizer


def cost_folder() -> Path:
    """Return the folder in which the servers of this test run look for costs."""
    return Path(os.environ["XDG_CACHE_HOME"]) / "headwaiter"


def store_cost(bundle: Path, *threads: int) -> None:
    """Store a made-up cost of a bundle on the CPU for these numbers of threads (0: all); servers learn the true one."""
    from headwaiter_server.models.calibration import batch_limits
    from headwaiter_server.models.calibration_cache import CostFile
    from headwaiter_server.runtime.model import open_model
    from headwaiter_server.scheduling.cost import Calibration, CostModel

    for each in threads:
        model = open_model(bundle, "cpu", "auto", each or None)
        cost = CostModel(launch_s=2e-4, token_s=1e-6, padded_s=0, cell_s=0, hidden_row_s=1e-8)
        calibration = Calibration(cost, batch_limits(model, 1024), service_tokens_per_s=1e6, error_ratio=0)
        CostFile(cost_folder(), model, threads=each, token_cap=0).write(calibration)


def known_cost_problem(tokenizer: Tokenizer) -> str | None:
    """Return what `cost_problem` says of a tokenizer; of equal tokenizers, only the first is measured in a process."""
    return _cost_problem(tokenizer.to_str())


@cache
def _cost_problem(content: str) -> str | None:
    from headwaiter_server.runtime.tokenizer_cost import cost_problem

    return cost_problem(Tokenizer.from_str(content))
