"""Run the long runs, and exit with 1 if a promise is broken: `python -m tests.support.soak [PART ...]`."""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testbed.server_process import FRONT_ENDS, RunningServer, running_server
from tests.support.soak.attacked_server import attacked_server
from tests.support.soak.folder_chaos import folder_chaos
from tests.support.soak.models import export_feature_model, export_text_model
from tests.support.soak.parts import fuzz, http2_abuse, mixed_load

PARTS = ("load", "fuzz", "http2", "sockets", "folder")
SERVER = (sys.executable, "-m", "tests.support.soak.faulty_server")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.support.soak", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="parts to run (default: all)")
    parser.add_argument("--minutes", type=float, default=10, help="length of load, sockets and folder (default 10)")
    parser.add_argument("--messages", type=int, default=100_000, help="mutated messages of `fuzz` (default 100000)")
    parser.add_argument("--per-s", type=float, default=1000, help="most mutated messages a second (default 1000)")
    parser.add_argument("--scale", type=float, default=1, help="size of the attacks of `http2` (default 1)")
    parser.add_argument("--instances", type=int, default=2, help="sessions of the server (default 2)")
    parser.add_argument("--front-ends", type=int, default=0, help="front ends of the servers (default 0)")
    parser.add_argument("--seed", type=int, default=0, help="seed of all random choices (default 0)")
    return parser.parse_args()


def main() -> int:
    """Run the parts, and return the exit code."""
    arguments = _arguments()
    os.environ[FRONT_ENDS] = str(arguments.front_ends)
    with tempfile.TemporaryDirectory() as folder:
        text_model = export_text_model(Path(folder))
        broken: list[str] = []
        for part in arguments.parts or PARTS:
            print(f"\n== {part}", flush=True)
            if part in ("sockets", "folder"):
                broken += _run_alone(part, text_model, Path(folder), arguments)
                continue
            bundles = [text_model]
            if part == "fuzz":
                bundles.append(export_feature_model(Path(folder)))
            for bundle in bundles:
                with _served(bundle, arguments.instances) as server:
                    broken += _run(part, server, arguments, len(bundles))
    print("\nall promises kept" if not broken else "\nbroken promises:\n" + "\n".join(broken))
    return bool(broken)


def _run(part: str, server: RunningServer, arguments: argparse.Namespace, servers: int) -> list[str]:
    started_s = time.monotonic()
    if part == "load":
        broken = asyncio.run(mixed_load(server, arguments.minutes * 60, arguments.seed))
    elif part == "fuzz":
        broken = fuzz(server, arguments.messages // servers, arguments.per_s, arguments.seed)
    else:
        broken = http2_abuse(server, arguments.scale)
    if server.process.poll() is not None:
        broken.append(f"{part}: the server has exited with {server.process.poll()}")
    print(f"{part}: {time.monotonic() - started_s:.0f} s, {len(broken)} broken promises", flush=True)
    return broken


def _run_alone(part: str, bundle: Path, folder: Path, arguments: argparse.Namespace) -> list[str]:
    """Run a part that starts its own servers."""
    seconds = arguments.minutes * 60
    if part == "folder":
        return folder_chaos(bundle, folder, seconds, arguments.seed)
    flags = ["--provider", "cpu", "--threads", "1", "--http-api", "on", "--max-request-bytes", str(4 << 20)]
    wrapper = ["bash", "-c", 'ulimit -n 1024 && exec "$@"', "bash"]
    path = bundle.with_suffix(f".{part}.log")
    with (
        path.open("wb") as log,
        path.with_suffix(".beside.log").open("wb") as log_beside,
        running_server(bundle, flags, wrapper, log=log_beside) as beside,
        running_server(bundle, flags, wrapper, log=log) as server,
    ):
        broken = attacked_server(server, beside, seconds)
    print(f"server log: {path.stat().st_size / 1e3:.0f} kB, {path.read_text().count('Traceback')} tracebacks")
    return broken


@contextmanager
def _served(bundle: Path, instances: int) -> Iterator[RunningServer]:
    """Serve a bundle, and print the size of the log."""
    flags = ["--provider", "cpu", "--instances", str(instances), "--threads", "1"]
    path = bundle.with_suffix(".log")
    with path.open("wb") as log, running_server(bundle, flags, program=SERVER, log=log) as server:
        yield server
    print(f"server log: {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    sys.exit(main())
