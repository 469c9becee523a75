"""Runs the GPU check on this machine, and prints its figures, what they decide, and which goals hold.

Each part has a share of 8 minutes, and starts no measurement later; what was left out is an error of the part. After
each part, its figures and all decisions so far are printed and written. At the end, the lines to paste into the
documentation follow. If a call hangs, the check ends after 8 minutes. The exit status is 1 if a requirement does not
hold, if an error or a lack of time prevented a measurement, or if the GPU cannot be used.
"""

import argparse
import faulthandler
import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import psutil

from bench.findings import Finding, Findings, findings_table, summary, to_json
from bench.gpu.batches import batches
from bench.gpu.calls import calls
from bench.gpu.correctness import correctness
from bench.gpu.cuda import versions
from bench.gpu.decisions import report
from bench.gpu.documents import document_lines
from bench.gpu.forms import forms
from bench.gpu.graphs import graphs
from bench.gpu.in_process import in_process
from bench.gpu.kernels import kernels
from bench.gpu.long_sequences import long_sequences
from bench.gpu.memory import memory
from bench.gpu.rotary import rotary
from bench.gpu.served import served
from bench.gpu.settings import BUDGET_S, FULL, QUICK, START_S, Settings
from testbed.minilm import CHECKPOINT, ROOT


class Part(NamedTuple):
    """A part of the check, and its share of the time, in seconds."""

    run: Callable[[Settings, Findings], None]
    budget_s: float


# What decides most comes first. The time that a part leaves goes to the next one; a part that takes more than its share
# takes it from the last ones.
PARTS = {
    "correctness": Part(correctness, 80),
    "kernels": Part(kernels, 30),
    "batches": Part(batches, 30),
    "graphs": Part(graphs, 55),
    "in_process": Part(in_process, 45),
    "served": Part(served, 75),
    "calls": Part(calls, 55),
    "rotary": Part(rotary, 30),
    "memory": Part(memory, 25),
    "long_sequences": Part(long_sequences, 10),
    "forms": Part(forms, 45),
}
# If a call hangs and keeps Python from running too, the process ends this long after the budget.
_LAST_RESORT_S = 15.0
# Makes the settings, given the size of the runs, the checkpoint and a folder.
MakeSettings = Callable[..., Settings]
Clock = Callable[[], float]


def main(
    arguments: Sequence[str] | None = None,
    make_settings: MakeSettings = Settings,
    now_s: Clock = time.monotonic,
    budget_s: float = BUDGET_S,
) -> int:
    """Run the chosen parts and return the exit status; end the process with status 1 if it exceeds the budget."""
    chosen = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    started_s = now_s()
    logging.getLogger("headwaiter_client").setLevel(logging.ERROR)  # It warns while a server starts.
    with TemporaryDirectory(prefix="gpu-check-") as folder:
        checkpoint = chosen.model if chosen.model.is_dir() else None
        settings = make_settings(QUICK if chosen.quick else FULL, checkpoint, Path(folder))
        if reason := settings.gpu.unavailable_reason():
            print(f"gpu-check: {reason}", file=sys.stderr)
            return 1
        run = {"command": " ".join(sys.argv[1:]), **versions(settings.gpu)}
        findings: list[Finding] = []
        with _ends_within(budget_s, findings, settings, run, chosen.json):
            _run_parts(chosen.parts or PARTS, settings, findings, now_s, started_s, run, chosen.json)
    print(_report(findings, run))
    return int(any(finding.fails for finding in findings))


def _report(findings: Sequence[Finding], run: Mapping[str, str]) -> str:
    machine = "\n".join(f"- {name}: {value}" for name, value in run.items() if value)
    texts = (
        machine,
        findings_table(findings),
        summary(findings),
        document_lines(findings, run["GPU"]),
        report(findings, run["GPU"]),
    )
    return "\n\n".join(texts)


@contextmanager
def _ends_within(
    seconds: float, found: list[Finding], settings: Settings, run: Mapping[str, str], json: Path
) -> Iterator[None]:
    """End the process with status 1, and all processes that it started, if the block takes longer."""
    stderr = sys.__stderr__
    assert stderr is not None

    def end() -> None:
        faulthandler.dump_traceback(stderr)
        reason = f"a call has not returned {seconds:.0f} s after the start of the check"
        found.append(Finding("all parts", "duration, s", reason=reason, is_error=True))
        json.write_text(to_json(found, run), encoding="utf-8")
        # Standard output may be redirected: see `printed_kernels`.
        print(_report(found, run), file=stderr, flush=True)
        for child in psutil.Process().children(recursive=True):
            child.kill()
        shutil.rmtree(settings.folder, ignore_errors=True)
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    faulthandler.dump_traceback_later(seconds + _LAST_RESORT_S, exit=True, file=stderr)
    try:
        yield
    finally:
        timer.cancel()
        faulthandler.cancel_dump_traceback_later()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parts_help = f"parts to run, of {', '.join(PARTS)} (default: all)"
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], metavar="PART", help=parts_help)
    parser.add_argument("--quick", action="store_true", help="run fewer rounds, requests and random shapes")
    model_help = "folder of the all-MiniLM-L6-v2 checkpoint (`make demo` downloads it); without it, weights are random"
    parser.add_argument("--model", type=Path, default=CHECKPOINT, help=model_help)
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "gpu-check.json", help="file for the findings")
    return parser


def _run_parts(
    parts: Collection[str],
    settings: Settings,
    found: list[Finding],
    now_s: Clock,
    started_s: float,
    run: Mapping[str, str],
    json: Path,
) -> None:
    json.parent.mkdir(parents=True, exist_ok=True)
    budgets_s = sum(PARTS[name].budget_s for name in parts)
    end_s = started_s
    for name in (each for each in PARTS if each in parts):
        findings, before, part_started_s = Findings(name, found), len(found), now_s()
        end_s = max(end_s, part_started_s) + PARTS[name].budget_s / budgets_s * BUDGET_S
        with findings.attempt(name):
            limited = Findings(name, found, min(end_s, started_s + START_S), now_s)
            limited.require_time()
            PARTS[name].run(settings, limited)
        findings.record("duration of this part, s", now_s() - part_started_s)
        # A run that is cut off later leaves this much.
        json.write_text(to_json(found, run), encoding="utf-8")
        print(f"{findings_table(found[before:])}\n\n{report(found, run['GPU'])}\n", flush=True)
    Findings("all parts", found).require("duration, s", now_s() - started_s, "≤", BUDGET_S)
    json.write_text(to_json(found, run), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
