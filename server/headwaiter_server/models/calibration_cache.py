"""Store the measured cost of a model in a file, so that a restart on the same machine does not measure again."""

import hashlib
import json
import logging
import math
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from headwaiter_server.models.calibration import batch_limits, check_longest_sequence, measure_cost, warm_up
from headwaiter_server.runtime.hardware import describe_hardware
from headwaiter_server.runtime.model import Model
from headwaiter_server.scheduling.cost import Calibration, CostModel

log = logging.getLogger(__name__)

# Increase this number when the set of stored numbers changes, or the way in which they are measured.
_FORMAT = 5
# A larger error means that other processes disturbed the measurement, so the measurement is not stored.
_STEADY_ERROR_RATIO = 0.1
_COEFFICIENTS = ("launch_s", "token_s", "padded_s", "cell_s", "hidden_row_s")
_OTHER_NUMBERS = ("token_budget", "service_tokens_per_s", "error_ratio")


def calibrate(model: Model, *, threads: int, token_cap: int, folder: Path | None, warms_up: bool = True) -> Calibration:
    """Return the stored cost of the same graph on the same machine; if none is stored, measure and store the cost.

    A damaged file is ignored.

    Args:
        model: the model to measure.
        threads: threads of the CPU provider for one session; 0 for ONNX Runtime's default.
        token_cap: largest token budget; 0 for the provider's default.
        folder: cache folder; None to store nothing.
        warms_up: whether to run full batches, and halve the limits if they fail.

    Raises:
        LongestSequenceRefused: one longest sequence cannot run on the GPU.
    """
    check_longest_sequence(model)
    conditions = {
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
    file = None if folder is None else _file_path(folder, conditions)
    calibration = None if file is None else _read_file(file, conditions, model)
    if calibration is None:
        calibration = measure_cost(model, token_cap)
        _store(file, conditions, calibration)
    if not warms_up:
        return calibration
    # Halved limits are not stored, because more memory may be free at the next start.
    return replace(calibration, limits=warm_up(model, calibration.limits))


def _store(file: Path | None, conditions: dict[str, Any], calibration: Calibration) -> None:
    if file is None:
        log.info("the cost of batches is measured at every start: set --cache-dir to store the measurement")
    elif calibration.error_ratio > _STEADY_ERROR_RATIO:
        log.warning(
            "the measured cost of batches is not stored, because the median error of its predictions is %.0f %%: "
            "stop other work on this machine and restart",
            100 * calibration.error_ratio,
        )
    else:
        _write_file(file, conditions, calibration)


def _file_path(folder: Path, conditions: dict[str, Any]) -> Path:
    return folder / f"calibration-{hashlib.sha256(json.dumps(conditions).encode()).hexdigest()[:32]}.json"


def _read_file(file: Path, conditions: dict[str, Any], model: Model) -> Calibration | None:
    try:
        content = json.loads(file.read_bytes())
        measured = {name: _checked_number(content[name]) for name in (*_COEFFICIENTS, *_OTHER_NUMBERS)}
        same_conditions = content["about"] == conditions
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    launch_s, token_s, padded_s, cell_s, hidden_row_s = (measured[name] for name in _COEFFICIENTS)
    tokens = int(measured["token_budget"])
    if not same_conditions or tokens < 1 or launch_s + token_s + padded_s + cell_s == 0:
        return None
    cost = CostModel(launch_s, token_s, padded_s, cell_s, model.graph.variable_length, hidden_row_s)
    rate, error_ratio = measured["service_tokens_per_s"], measured["error_ratio"]
    return Calibration(cost, batch_limits(model, tokens), rate, error_ratio, remembered=True)


def _checked_number(value: Any) -> float:
    number = float(value)
    if not 0 <= number < math.inf:
        raise ValueError
    return number


def _write_file(file: Path, conditions: dict[str, Any], calibration: Calibration) -> None:
    content = {
        "about": conditions,
        **{name: getattr(calibration.cost, name) for name in _COEFFICIENTS},
        "token_budget": calibration.limits.tokens,
        "service_tokens_per_s": calibration.service_tokens_per_s,
        "error_ratio": calibration.error_ratio,
    }
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # Other servers may read or write the file at the same time, so replace the file in one step.
        with TemporaryDirectory(dir=file.parent) as folder:
            complete = Path(folder) / file.name
            complete.write_text(json.dumps(content, indent=2))
            complete.replace(file)
    except OSError as error:
        log.warning("the cost of batches is measured at every start, because --cache-dir cannot be written: %s", error)
