"""Store the cost that a model's batches have taught in a file, so that the next start need not measure."""

import hashlib
import json
import logging
import math
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from headwaiter_server.models.calibration import batch_limits, check_longest_sequence, measure_cost, warm_up
from headwaiter_server.runtime.hardware import describe_hardware
from headwaiter_server.runtime.model import Model
from headwaiter_server.scheduling.cost import Calibration, CostModel

log = logging.getLogger(__name__)

# Increase this number when the set of stored numbers changes, or the way in which they are measured.
_FORMAT = 7
_COEFFICIENTS = ("launch_s", "token_s", "padded_s", "cell_s", "hidden_row_s")
_OTHER_NUMBERS = ("token_budget", "service_tokens_per_s", "error_ratio")


class CostFile:
    """The file for the cost of one graph on this machine, with these threads and limits."""

    def __init__(self, folder: Path, model: Model, *, threads: int, token_cap: int) -> None:
        """Find the file in a folder, which may be missing."""
        self._conditions: dict[str, Any] = {
            "format": _FORMAT,
            # Not the digest of the bundle: a new version of a model usually has the same graph and other weights.
            "graph": model.graph_sha256,
            "max_tokens": model.bundle.manifest.max_tokens,
            "provider": model.provider,
            "variable_length": model.graph.variable_length,
            "threads": threads,
            "token_cap": token_cap,
            "max_gpu_bytes": model.resources.max_gpu_bytes,
            **describe_hardware(),
        }
        digest = hashlib.sha256(json.dumps(self._conditions).encode()).hexdigest()
        self._file = folder / f"calibration-{digest[:32]}.json"

    @classmethod
    def of(cls, folder: Path | None, model: Model, *, threads: int, token_cap: int) -> Self | None:
        """Return the file in a folder; None without a folder."""
        return None if folder is None else cls(folder, model, threads=threads, token_cap=token_cap)

    def read(self, model: Model) -> Calibration | None:
        """Return what is stored; None if nothing usable is stored."""
        try:
            content = json.loads(self._file.read_bytes())
            stored = {name: _checked_number(content[name]) for name in (*_COEFFICIENTS, *_OTHER_NUMBERS)}
            same_conditions = content["about"] == self._conditions
        except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return None
        launch_s, token_s, padded_s, cell_s, hidden_row_s = (stored[name] for name in _COEFFICIENTS)
        tokens = int(stored["token_budget"])
        if not same_conditions or tokens < 1 or launch_s + token_s + padded_s + cell_s == 0:
            return None
        cost = CostModel(launch_s, token_s, padded_s, cell_s, model.graph.variable_length, hidden_row_s)
        rate, error_ratio = stored["service_tokens_per_s"], stored["error_ratio"]
        return Calibration(cost, batch_limits(model, tokens), rate, error_ratio, remembered=True)

    def write(self, calibration: Calibration) -> None:
        """Store a calibration in place of the one that is stored; log why if that fails."""
        content = {
            "about": self._conditions,
            **{name: getattr(calibration.cost, name) for name in _COEFFICIENTS},
            "token_budget": calibration.limits.tokens,
            "service_tokens_per_s": calibration.service_tokens_per_s,
            "error_ratio": calibration.error_ratio,
        }
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            # Other servers may read or write the file at the same time, so replace the file in one step.
            with TemporaryDirectory(dir=self._file.parent) as folder:
                complete = Path(folder) / self._file.name
                complete.write_text(json.dumps(content, indent=2))
                complete.replace(self._file)
        except OSError as error:
            log.warning("the cost of batches is not stored, because --cache-dir cannot be written: %s", error)


def calibrate(model: Model, *, token_cap: int, file: CostFile | None, warms_up: bool = True) -> Calibration:
    """Return the stored cost of the same graph on the same machine, or measure the cost if none is stored.

    What is measured here is not stored: other processes may disturb the start. `LearntCost` corrects it.

    Args:
        model: the model to measure.
        token_cap: largest token budget; 0 for the provider's default.
        file: the file of the stored cost; None if nothing is stored.
        warms_up: whether to run full batches, and halve the limits if they fail.

    Raises:
        LongestSequenceRefused: one longest sequence cannot run on the GPU.
    """
    check_longest_sequence(model)
    if file is None:
        log.info("the cost of batches is measured at every start: set --cache-dir to store what is learnt")
    calibration = (file and file.read(model)) or measure_cost(model, token_cap)
    if warms_up:
        # Halved limits are not stored, because more memory may be free at the next start.
        calibration = replace(calibration, limits=warm_up(model, calibration.limits))
    return calibration


def _checked_number(value: Any) -> float:
    number = float(value)
    if not 0 <= number < math.inf:
        raise ValueError
    return number
