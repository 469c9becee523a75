"""Runs the GPU check on this machine and prints one table of measurements and requirements.

`python -m bench.gpu` runs on the GPU and takes less than 8 minutes. With --provider cpu it rehearses the check on tiny
models, to show that every part runs. The exit status is 1 if a requirement does not hold, if an error prevented a
measurement, or if the GPU cannot be used. The GPU and all versions are printed above the table.
"""

import argparse
import logging
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.findings import Finding, Findings, findings_table, summary, to_json
from bench.gpu.correctness import correctness
from bench.gpu.environment import environment, gpu_unavailable_reason, versions
from bench.gpu.memory import memory
from bench.gpu.service import service
from bench.gpu.settings import CPU, CPU_QUICK, FULL, QUICK, Settings
from bench.gpu.speed import speed
from testbed.minilm import CHECKPOINT, ROOT

PARTS: dict[str, Callable[[Settings, Findings], None]] = {
    "environment": environment,
    "correctness": correctness,
    "speed": speed,
    "memory": memory,
    "service": service,
}


def main() -> int:
    """Run the chosen parts and return the exit status."""
    arguments = _parser().parse_args()
    if arguments.provider == "cuda" and (reason := gpu_unavailable_reason()):
        sys.exit(f"gpu-check: {reason}")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    started_s = time.monotonic()
    run = {"command": " ".join(sys.argv[1:]), **versions(arguments.provider)}
    with TemporaryDirectory(prefix="gpu-check-") as folder:
        findings = _run_parts(arguments, run, Path(folder))
    minutes = (time.monotonic() - started_s) / 60
    machine = "\n".join(f"- {name}: {value}" for name, value in run.items() if value)
    print(machine, findings_table(findings), summary(findings), f"{minutes:.1f} minutes", sep="\n\n")
    return int(any(finding.fails for finding in findings))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parts_help = f"parts to run, of {', '.join(PARTS)} (default: all)"
    parser.add_argument("parts", nargs="*", choices=list(PARTS), metavar="PART", help=parts_help)
    parser.add_argument("--provider", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="run fewer rounds, requests and random shapes")
    model_help = "folder of the all-MiniLM-L6-v2 checkpoint (`make demo` downloads it); without it, weights are random"
    parser.add_argument("--model", type=Path, default=CHECKPOINT, help=model_help)
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "gpu-check.json", help="file for the findings")
    return parser


def _run_parts(arguments: argparse.Namespace, run: Mapping[str, str], folder: Path) -> list[Finding]:
    efforts = {("cuda", False): FULL, ("cuda", True): QUICK, ("cpu", False): CPU, ("cpu", True): CPU_QUICK}
    checkpoint = arguments.model if arguments.model.is_dir() else None
    settings = Settings(arguments.provider, efforts[arguments.provider, arguments.quick], checkpoint, folder)
    found: list[Finding] = []
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    for name, part in PARTS.items():
        if name in (arguments.parts or PARTS):
            findings = Findings(name)
            part_started_s = time.monotonic()
            with findings.attempt(name):
                part(settings, findings)
            findings.record("duration of this part, s", time.monotonic() - part_started_s)
            found += findings.found
            # After every part, so that earlier findings survive a GPU that hangs.
            arguments.json.write_text(to_json(found, run), encoding="utf-8")
    return found


if __name__ == "__main__":
    sys.exit(main())
