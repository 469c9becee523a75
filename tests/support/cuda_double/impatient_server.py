"""`unchecked_server` that measures nothing at its start, and gives up devices within seconds.

python -m tests.support.cuda_double.impatient_server BUNDLE [flags of headwaiter-server]
"""

import sys
from typing import Any
from unittest.mock import patch

from headwaiter_server.concurrency import watchdog
from headwaiter_server.models import loading
from headwaiter_server.models.calibration import batch_limits
from headwaiter_server.runtime.model import Model
from headwaiter_server.scheduling import worker
from headwaiter_server.scheduling.cost import Calibration, CostModel
from tests.support.cuda_double import unchecked_server

TOKEN_BUDGET = 8192
_BATCH_LIMIT_S = 1.0


def _calibrate(model: Model, *_: Any, **__: Any) -> Calibration:
    cost = CostModel(launch_s=1e-3, token_s=1e-7, padded_s=0, cell_s=0, variable_length=True)
    return Calibration(cost, batch_limits(model, TOKEN_BUDGET), service_tokens_per_s=1e6, error_ratio=0)


def main() -> int:
    """Serve as the command line says; no batch runs before the first request, so the arena is small."""
    with (
        patch.object(loading, "calibrate", _calibrate),
        patch.object(watchdog, "_SHORTEST_LIMIT_S", _BATCH_LIMIT_S),
        patch.object(worker, "_WATCH_INTERVAL_S", 0.05),
    ):
        return unchecked_server.main()


if __name__ == "__main__":
    sys.exit(main())
