"""Checks on this machine what only a card can show, in one go, and prints one table of what is required and measured.

`python -m bench.gpu` runs on the card, and is meant to take less than 8 minutes; with --provider cpu it shows on
models of next to nothing that everything runs. The exit status is 1 where something required does not hold, where an
error kept something from being measured, or where the card cannot be used. The card and the versions stand above
the table.
"""

import argparse
import logging
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

from bench.gpu.correctness import correctness
from bench.gpu.environment import environment, versions, why_no_card
from bench.gpu.findings import Finding, Findings, summary, table, to_json
from bench.gpu.memory import memory
from bench.gpu.service import service
from bench.gpu.setting import CPU, CPU_QUICK, FULL, QUICK, Setting
from bench.gpu.speed import speed
from testbed.minilm import CHECKPOINT, ROOT

PARTS: dict[str, Callable[[Setting, Findings], None]] = {
    "environment": environment,
    "correctness": correctness,
    "speed": speed,
    "memory": memory,
    "service": service,
}


def main() -> int:
    """Run the parts that are asked for and return the exit status."""
    arguments = _parser().parse_args()
    if unknown := sorted(set(arguments.parts) - set(PARTS)):
        _fail(f"no part is called {unknown[0]}: there are {', '.join(PARTS)}", 2)
    if arguments.provider == "cuda" and (why := why_no_card()):
        _fail(why, 1)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    started_s = time.monotonic()
    run = {"command": " ".join(sys.argv[1:]), **versions(arguments.provider)}
    with TemporaryDirectory(prefix="gpu-check-") as folder:
        found = _run(arguments, run, Path(folder))
    minutes = (time.monotonic() - started_s) / 60
    about = "\n".join(f"- {what}: {seen}" for what, seen in run.items() if seen)
    print(about, table(found), summary(found), f"{minutes:.1f} minutes", sep="\n\n")
    return int(any(finding.fails for finding in found))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all, unless some are named")
    parser.add_argument("--provider", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, requests and random shapes")
    parser.add_argument(
        "--model",
        type=Path,
        default=CHECKPOINT,
        help="the checkpoint's folder of all-MiniLM-L6-v2, which `make demo` fetches; without it, its shape is checked",
    )
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "gpu-check.json", help="where the findings go")
    return parser


def _run(arguments: argparse.Namespace, run: Mapping[str, str], folder: Path) -> list[Finding]:
    efforts = {("cuda", False): FULL, ("cuda", True): QUICK, ("cpu", False): CPU, ("cpu", True): CPU_QUICK}
    setting = Setting(
        arguments.provider,
        efforts[arguments.provider, arguments.quick],
        arguments.model if arguments.model.is_dir() else None,
        folder,
    )
    found: list[Finding] = []
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    for name, part in PARTS.items():
        if name in (arguments.parts or PARTS):
            findings = Findings(name)
            part_started_s = time.monotonic()
            with findings.attempt(name):
                part(setting, findings)
            findings.see("seconds that this part took", time.monotonic() - part_started_s)
            found += findings.found
            # After every part, so that what was found outlives a card that hangs.
            arguments.json.write_text(to_json(found, run), encoding="utf-8")
    return found


def _fail(sentence: str, status: int) -> NoReturn:
    print(f"gpu-check: {sentence}", file=sys.stderr)
    sys.exit(status)


if __name__ == "__main__":
    sys.exit(main())
