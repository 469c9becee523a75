"""Runs the benchmarks in one go on one machine and prints their tables; all of them together write the document."""

import argparse
import time
from pathlib import Path

from bench.loads.traces import MEDIAN_30, MEDIAN_90, Trace, real_sentences
from bench.measure import Fleet
from bench.report import tables as report
from bench.run_sizes import FULL, QUICK, Effort
from bench.studies import int8, shapes
from bench.studies.client import client
from bench.studies.failover import failover
from bench.studies.front_end import front_end
from bench.studies.open_loop import open_loops
from bench.studies.overheads import alone, metrics, poison
from bench.studies.planning_cost import planning
from bench.studies.throughput import throughput
from bench.studies.tokenizing import tokenizing
from headwaiter_server.runtime.bundle import TOKENIZER, Bundle
from testbed.minilm import ROOT, bundle

PARTS = (
    "throughput",
    "load",
    "alone",
    "metrics",
    "poison",
    "front-end",
    "client",
    "failover",
    "planning",
    "shapes",
    "int8",
    "tokenizing",
)
_SEQUENCES = 2000


def main() -> None:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; load runs throughput too")
    parser.add_argument("--quick", action="store_true", help="one trace, one round, 32 requesters; writes no document")
    parser.add_argument(
        "--json",
        type=Path,
        default=ROOT / "build" / "benchmarks.json",
        help="where the figures go, with a picture beside",
    )
    arguments = parser.parse_args()
    parts = set(arguments.parts or PARTS)
    if unknown := parts - set(PARTS):
        parser.error(f"no part is called {', '.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    effort = QUICK if arguments.quick else FULL
    figures, started_s = report.Figures(effort.rounds), time.monotonic()
    try:
        with Fleet() as fleet:
            _run(parts, figures, fleet, effort)
    finally:
        # A run that breaks off leaves what it has found.
        minutes = (time.monotonic() - started_s) / 60
        arguments.json.parent.mkdir(exist_ok=True)
        arguments.json.write_text(figures.json(), encoding="utf-8")
        print(report.tables(figures), f"{minutes:.1f} minutes", sep="\n\n")
        if figures.open_loops:
            report.picture(figures.open_loops, arguments.json.with_suffix(".png"))
    if effort is FULL and parts == set(PARTS):
        report.write_document(figures, minutes)


def _run(parts: set[str], figures: report.Figures, fleet: Fleet, effort: Effort) -> None:
    traces = _traces(effort)
    if parts & {"throughput", "load"}:
        for trace in traces:
            figures.throughput.append(throughput(trace, fleet, effort))
    if "load" in parts:
        # Of the log-normal traces only, and beyond capacity of the first.
        for trace, closed in list(zip(traces, figures.throughput, strict=True))[:2]:
            figures.open_loops.append(open_loops(trace, closed, fleet, effort, overload=trace is traces[0]))
    if "alone" in parts:
        figures.alone = alone(traces[0], fleet, effort)
    if "metrics" in parts:
        figures.metrics = metrics(traces[0], fleet, effort)
    if "poison" in parts:
        figures.poison = poison(traces[0], fleet, effort)
    if "front-end" in parts:
        figures.front_end = front_end(fleet, effort)
    if "client" in parts:
        figures.client = client(fleet, effort)
    if "failover" in parts:
        figures.failover = failover(effort)
    if "planning" in parts:
        figures.planning = planning()
    if "shapes" in parts:
        figures.shapes = shapes.table()
    if "int8" in parts:
        figures.int8 = int8.table()
    if "tokenizing" in parts:
        figures.tokenizing = tokenizing()


def _traces(effort: Effort) -> list[Trace]:
    opened = Bundle.open(bundle())
    log_normal = [lengths.trace(_SEQUENCES, opened.manifest.vocabulary_size) for lengths in (MEDIAN_30, MEDIAN_90)]
    if not effort.all_traces:
        return log_normal[:1]
    return [*log_normal, real_sentences(_SEQUENCES, opened.folder / TOKENIZER, opened.manifest.max_tokens)]


if __name__ == "__main__":
    main()
