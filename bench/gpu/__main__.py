"""Runs the GPU check on this machine and prints one table of measurements and requirements.

The exit status is 1 if a requirement does not hold, if an error or a lack of time prevented a measurement, or if the
GPU cannot be used. The GPU and all versions are printed above the table, and the lines to paste into the documentation
below the table. No measurement starts after 7 minutes, so the most important part runs first.
"""

import argparse
import logging
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.findings import Finding, Findings, findings_table, summary, to_json
from bench.gpu.correctness import correctness
from bench.gpu.documents import document_lines
from bench.gpu.environment import environment, versions
from bench.gpu.memory import memory
from bench.gpu.service import service
from bench.gpu.settings import BUDGET_S, FULL, QUICK, START_S, Settings
from bench.gpu.speed import speed
from testbed.minilm import CHECKPOINT, ROOT

PARTS: dict[str, Callable[[Settings, Findings], None]] = {
    "environment": environment,
    "correctness": correctness,
    "service": service,
    "speed": speed,
    "memory": memory,
}
# Makes the settings, given the size of the runs, the checkpoint and a folder.
MakeSettings = Callable[..., Settings]
Clock = Callable[[], float]


def main(
    arguments: Sequence[str] | None = None, make_settings: MakeSettings = Settings, now_s: Clock = time.monotonic
) -> int:
    """Run the chosen parts and return the exit status."""
    chosen = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    started_s = now_s()
    with TemporaryDirectory(prefix="gpu-check-") as folder:
        checkpoint = chosen.model if chosen.model.is_dir() else None
        settings = make_settings(QUICK if chosen.quick else FULL, checkpoint, Path(folder))
        if reason := settings.gpu.unavailable_reason():
            print(f"gpu-check: {reason}", file=sys.stderr)
            return 1
        run = {"command": " ".join(sys.argv[1:]), **versions(settings.gpu)}
        findings = _run_parts(chosen.parts or PARTS, settings, now_s, started_s, run, chosen.json)
    machine = "\n".join(f"- {name}: {value}" for name, value in run.items() if value)
    print(machine, findings_table(findings), summary(findings), document_lines(findings, run["GPU"]), sep="\n\n")
    return int(any(finding.fails for finding in findings))


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
    parts: Collection[str], settings: Settings, now_s: Clock, started_s: float, run: Mapping[str, str], json: Path
) -> list[Finding]:
    found: list[Finding] = []
    json.parent.mkdir(parents=True, exist_ok=True)
    for name, part in PARTS.items():
        if name in parts:
            findings = Findings(name, found)
            part_started_s = now_s()
            with findings.attempt(name):
                limited = Findings(name, found, started_s + START_S, now_s)
                limited.require_time()
                part(settings, limited)
            findings.record("duration of this part, s", now_s() - part_started_s)
            # Write the file after every part, so that earlier findings survive a GPU that hangs.
            json.write_text(to_json(found, run), encoding="utf-8")
    Findings("all parts", found).require("duration, s", now_s() - started_s, "≤", BUDGET_S)
    json.write_text(to_json(found, run), encoding="utf-8")
    return found


if __name__ == "__main__":
    sys.exit(main())
