"""The measured costs of the tests' bundles, stored once per test run.

A server measures again at every start if other processes disturb the measurement, as tests do: a second each time.
"""

import os
from pathlib import Path
from unittest.mock import patch


def cost_folder() -> Path:
    """Return the folder in which the servers of this test run look for costs."""
    return Path(os.environ["XDG_CACHE_HOME"]) / "headwaiter"


def store_cost(bundle: Path, *threads: int) -> None:
    """Measure and store the cost of a bundle on the CPU, however exact it is, for these numbers of threads (0: all)."""
    from headwaiter_server.models import calibration_cache
    from headwaiter_server.runtime.model import open_model

    with patch.object(calibration_cache, "_STEADY_ERROR_RATIO", float("inf")):
        for each in threads:
            model = open_model(bundle, "cpu", "auto", each or None)
            calibration_cache.calibrate(model, threads=each, token_cap=0, folder=cost_folder())
