"""Remembers what was measured of a model, so that a restart on the same machine need not measure it again."""

import hashlib
import json
import logging
import math
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from headwaiter_server.runtime.hardware import describe_hardware
from headwaiter_server.runtime.model import Model
from headwaiter_server.scheduling.calibration import Calibration, batch_limits, measure_cost, warm_up
from headwaiter_server.scheduling.cost import CostModel

log = logging.getLogger(__name__)

# Raised when what is measured, or how, changes.
_FORMAT = 1
# A fit that is further off was measured while something else took the machine's time: better to measure again.
_STEADY_ERROR_RATIO = 0.1
_COEFFICIENTS = ("launch_s", "token_s", "padded_s", "cell_s")
_OTHERS = ("token_budget", "service_tokens_per_s", "error_ratio")


def calibrate(model: Model, *, threads: int, token_cap: int, folder: Path | None) -> Calibration:
    """Return what was measured of the model on this machine at an earlier start; else measure it, and remember it.

    Its limits are those of batches that have run just now. A file that is damaged, or that is about something else,
    counts as none.

    Args:
        model: what to measure.
        threads: of the CPU provider, as it was configured.
        token_cap: largest token budget; 0 leaves that to the provider.
        folder: where to remember it; None for nowhere.
    """
    about = {
        "format": _FORMAT,
        "digest": model.bundle.digest,
        "graph": model.graph_file,
        "provider": model.provider,
        "threads": threads,
        "token_cap": token_cap,
        "max_gpu_bytes": model.resources.max_gpu_bytes,
        **describe_hardware(),
    }
    file = None if folder is None else _file(folder, about)
    calibration = None if file is None else _read(file, about, model)
    if calibration is None:
        calibration = measure_cost(model, token_cap)
        _remember(file, about, calibration)
    # What memory is left for batches may differ from start to start, so that what it makes of the limits is not kept.
    return replace(calibration, limits=warm_up(model, calibration.limits))


def _remember(file: Path | None, about: dict[str, Any], calibration: Calibration) -> None:
    if file is None:
        log.info("what batches cost is measured at every start, as there is no --cache-dir to keep it in")
    elif calibration.error_ratio > _STEADY_ERROR_RATIO:
        log.warning(
            "what batches cost is not remembered, as timed batches differ from it by %.0f %% at the median: "
            "other work disturbs this machine",
            100 * calibration.error_ratio,
        )
    else:
        _write(file, about, calibration)


def _file(folder: Path, about: dict[str, Any]) -> Path:
    return folder / f"calibration-{hashlib.sha256(json.dumps(about).encode()).hexdigest()[:32]}.json"


def _read(file: Path, about: dict[str, Any], model: Model) -> Calibration | None:
    try:
        content = json.loads(file.read_bytes())
        measured = {name: _measured(content[name]) for name in (*_COEFFICIENTS, *_OTHERS)}
        known = content["about"] == about
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    launch_s, token_s, padded_s, cell_s = (measured[name] for name in _COEFFICIENTS)
    tokens = int(measured["token_budget"])
    if not known or tokens < 1 or launch_s + token_s + padded_s + cell_s == 0:
        return None
    cost = CostModel(launch_s, token_s, padded_s, cell_s, model.graph.variable_length)
    rate, error_ratio = measured["service_tokens_per_s"], measured["error_ratio"]
    return Calibration(cost, batch_limits(model, tokens), rate, error_ratio, remembered=True)


def _measured(value: Any) -> float:
    number = float(value)
    if not 0 <= number < math.inf:
        raise ValueError
    return number


def _write(file: Path, about: dict[str, Any], calibration: Calibration) -> None:
    content = {
        "about": about,
        **{name: getattr(calibration.cost, name) for name in _COEFFICIENTS},
        "token_budget": calibration.limits.tokens,
        "service_tokens_per_s": calibration.service_tokens_per_s,
        "error_ratio": calibration.error_ratio,
    }
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # The file appears whole or not at all, whoever else reads or writes it.
        with TemporaryDirectory(dir=file.parent) as folder:
            whole = Path(folder) / file.name
            whole.write_text(json.dumps(content, indent=2))
            whole.replace(file)
    except OSError as error:
        log.warning("what batches cost is measured at every start, as --cache-dir cannot be written: %s", error)
