"""Runs the benchmarks in one go on one machine, prints a table, and writes docs/benchmarks.md and its JSON."""

import argparse
import json
import platform
import statistics
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np

from bench import int8, shapes
from bench.ceiling import floor_s, in_process_s, one_by_one_s, pin
from bench.serve import closed_loop
from bench.traces import REQUESTERS, TRACES, Trace
from examples.model import ROOT, bundle, checkpoint
from examples.serving import running_server
from headwaiter_server.app import batch_limits, measure_cost
from headwaiter_server.runtime.model import open_model

ROUNDS = 3
SERVER_CORE, LOAD_CORE = 0, 1
DOCUMENT = ROOT / "docs" / "benchmarks.md"


@dataclass(frozen=True)
class Row:
    """Medians over the rounds; rates are tokens per second of one core, ratios are of one round."""

    trace: str
    tokens: int
    floor: float
    one_by_one: float
    in_process: float
    served: float
    in_process_to_floor: float
    served_to_in_process: float
    served_requests: float
    p50_ms: float
    p99_ms: float


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    arguments = parser.parse_args()
    rows = [measure(trace, arguments.rounds) for trace in TRACES]
    rates, mixes, precisions = ("\n".join(lines) for lines in (_table(rows), shapes.table(), int8.table()))
    print(rates, mixes, precisions, sep="\n\n")
    DOCUMENT.write_text(_document(rates, mixes, precisions, arguments.rounds))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=2))


def measure(trace: Trace, rounds: int) -> Row:
    """Measure one trace: each round the floor, in process and served, one after the other."""
    pin(SERVER_CORE)
    model = open_model(bundle(), "cpu", "fp32", threads=1)
    limits = batch_limits(model, token_budget=0)
    manifest = model.bundle.manifest
    d_ff = json.loads((checkpoint() / "config.json").read_text())["intermediate_size"]
    sequences = trace.token_ids(manifest.vocabulary_size)
    tokens = sum(map(len, sequences))
    seconds: dict[str, list[float]] = {"floor": [], "one_by_one": [], "in_process": [], "served": []}
    latencies_s = []
    for _ in range(rounds):
        pin(SERVER_CORE)
        wrapper = ["taskset", "-c", str(SERVER_CORE)]
        with running_server(bundle(), ["--provider", "cpu", "--threads", "1"], wrapper) as server:
            pin(LOAD_CORE)
            load = closed_loop(server.address, sequences, REQUESTERS)
        seconds["served"].append(load.seconds)
        latencies_s.append(load.latencies_s)
        pin(SERVER_CORE)
        cost = measure_cost(model, limits)
        seconds["in_process"].append(in_process_s(sequences, REQUESTERS, model.graph, cost, limits))
        seconds["one_by_one"].append(one_by_one_s(sequences, model.graph))
        seconds["floor"].append(floor_s(sequences, manifest, d_ff, limits.tokens))
    rates = {name: tokens / statistics.median(taken_s) for name, taken_s in seconds.items()}
    p50_s, p99_s = np.median([np.quantile(values, (0.5, 0.99)) for values in latencies_s], axis=0)
    return Row(
        trace.name,
        tokens,
        **rates,
        in_process_to_floor=_ratio(seconds["floor"], seconds["in_process"]),
        served_to_in_process=_ratio(seconds["in_process"], seconds["served"]),
        served_requests=trace.sequences / statistics.median(seconds["served"]),
        p50_ms=p50_s * 1e3,
        p99_ms=p99_s * 1e3,
    )


def _ratio(better_s: list[float], worse_s: list[float]) -> float:
    """Return the median over the rounds of one rate by another: what disturbs a round disturbs both."""
    return statistics.median(better / worse for better, worse in zip(better_s, worse_s, strict=True))


def _table(rows: list[Row]) -> list[str]:
    lines = [
        "| trace | floor | one by one | in process | served | in process / floor | served / in process "
        "| requests/s | p50 ms | p99 ms |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.trace} | {row.floor:,.0f} | {row.one_by_one:,.0f} | {row.in_process:,.0f} | {row.served:,.0f} "
        f"| {row.in_process_to_floor:.2f} | {row.served_to_in_process:.2f} "
        f"| {row.served_requests:.0f} | {row.p50_ms:.0f} | {row.p99_ms:.0f} |"
        for row in rows
    ]
    return lines


def _document(rates: str, mixes: str, precisions: str, rounds: int) -> str:
    return f"""# Benchmarks

Written by `make bench`; every figure is of one run on one machine.

## CPU

all-MiniLM-L6-v2 in fp32 on one core of an {_processor()}, ONNX Runtime {version("onnxruntime-gpu")} with one thread,
Python {platform.python_version()}; tokens per second, medians of {rounds} rounds. {REQUESTERS} requesters send one
sequence each and wait for the answer; the load generator has a core of its own.

{rates}

- **floor**: the linear layers' and each sequence's own attention products alone, in ONNX Runtime's MatMul. What is
  left out (softmax, norms, activations, gathers, Python) is what the next columns pay.
- **one by one**: the same graph, a batch for every sequence.
- **in process**: the planner and the packed graph over a window of {REQUESTERS} sequences, without a server.
- **served**: over gRPC.

Lengths are log-normal with σ 0.8, cut to the range in brackets.

A long sequence among many short ones, planned and run in process, against the two apart:

{mixes}

## int8 on the CPU

The packed CPU graphs alone, on the same core, in batches of at most {int8.BATCH_TOKENS} tokens sorted by length; tokens
per CPU-second, medians of {int8.ROUNDS} rounds in turns.

{precisions}

## GPU

Not yet measured.
"""


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


if __name__ == "__main__":
    main()
