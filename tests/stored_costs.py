"""Costs of the tests' bundles, so that servers need not measure at their start, which takes seconds."""

import os
from pathlib import Path


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
