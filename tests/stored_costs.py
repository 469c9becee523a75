"""The measured costs of the tests' bundles, stored once per test run.

A server without a stored cost measures at its start, which takes a second, and stores only what it learns later.
"""

import os
from pathlib import Path


def cost_folder() -> Path:
    """Return the folder in which the servers of this test run look for costs."""
    return Path(os.environ["XDG_CACHE_HOME"]) / "headwaiter"


def store_cost(bundle: Path, *threads: int) -> None:
    """Measure and store the cost of a bundle on the CPU for these numbers of threads (0: all)."""
    from headwaiter_server.models.calibration_cache import CostFile, calibrate
    from headwaiter_server.runtime.model import open_model

    for each in threads:
        model = open_model(bundle, "cpu", "auto", each or None)
        file = CostFile(cost_folder(), model, threads=each, token_cap=0)
        file.write(calibrate(model, token_cap=0, file=None))
