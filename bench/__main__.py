"""Runs the benchmarks on one machine and prints their tables; a run of all studies also writes docs/benchmarks.md."""

import argparse
import json
import time
from pathlib import Path

from bench.loads.traces import MEDIAN_30, MEDIAN_90, Trace, real_sentences
from bench.measure import Fleet
from bench.report import charts, tables
from bench.report.figures import Figures
from bench.run_sizes import FULL, QUICK, RunSizes
from bench.studies.client import client
from bench.studies.failover import failover
from bench.studies.front_end import front_end
from bench.studies.int8 import int8
from bench.studies.open_loop import open_loops
from bench.studies.overheads import metrics, poison, single_request
from bench.studies.planning_cost import planning_costs
from bench.studies.shapes import mixed_shapes
from bench.studies.throughput import throughput
from bench.studies.tokenizing import tokenizing
from headwaiter_server.runtime.bundle import TOKENIZER, Bundle
from testbed.minilm import ROOT, bundle

STUDIES = (
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
_DOCS = ROOT / "docs"
_SEQUENCES = 2000


def main() -> None:
    """Run the studies that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "studies", nargs="*", metavar="STUDY", help=f"{', '.join(STUDIES)} (default: all); load also runs throughput"
    )
    parser.add_argument(
        "--quick", action="store_true", help="one trace, one round and 32 requesters; writes nothing into docs"
    )
    parser.add_argument(
        "--json",
        type=Path,
        default=ROOT / "build" / "benchmarks.json",
        help="file for the figures; the charts are drawn beside it (default: build/benchmarks.json)",
    )
    arguments = parser.parse_args()
    studies = set(arguments.studies or STUDIES)
    if unknown := studies - set(STUDIES):
        parser.error(f"unknown study {', '.join(sorted(unknown))}: choose from {', '.join(STUDIES)}")
    sizes = QUICK if arguments.quick else FULL
    figures, started_s = Figures(sizes.rounds), time.monotonic()
    try:
        with Fleet() as fleet:
            _run(studies, figures, fleet, sizes)
    finally:
        # A run that fails keeps the figures of its finished studies.
        minutes = (time.monotonic() - started_s) / 60
        arguments.json.parent.mkdir(exist_ok=True)
        arguments.json.write_text(figures.to_json(), encoding="utf-8")
        print(*tables.sections(figures).values(), f"{minutes:.1f} minutes", sep="\n\n")
        charts.draw(json.loads(figures.to_json()), arguments.json.parent)
    if sizes is FULL and studies == set(STUDIES):
        (_DOCS / "benchmarks.json").write_text(figures.to_json(), encoding="utf-8")
        charts.draw(json.loads(figures.to_json()), _DOCS)
        (_DOCS / "benchmarks.md").write_text(tables.page(figures, minutes), encoding="utf-8")


def _run(studies: set[str], figures: Figures, fleet: Fleet, sizes: RunSizes) -> None:
    traces = _traces(sizes)
    if studies & {"throughput", "load"}:
        for trace in traces:
            figures.throughput.append(throughput(trace, fleet, sizes))
    if "load" in studies:
        # Open loops run with the two log-normal traces, and beyond capacity with the first of them.
        for trace, closed in list(zip(traces, figures.throughput, strict=True))[:2]:
            figures.open_loops.append(open_loops(trace, closed, fleet, sizes, overload=trace is traces[0]))
    if "alone" in studies:
        figures.single_request = single_request(traces[0], fleet, sizes)
    if "metrics" in studies:
        figures.metrics = metrics(traces[0], fleet, sizes)
    if "poison" in studies:
        figures.poison = poison(traces[0], fleet, sizes)
    if "front-end" in studies:
        figures.front_end = front_end(fleet, sizes)
    if "client" in studies:
        figures.client = client(fleet, sizes)
    if "failover" in studies:
        figures.failover = failover(sizes)
    if "planning" in studies:
        figures.planning = planning_costs()
    if "shapes" in studies:
        figures.shapes = mixed_shapes()
    if "int8" in studies:
        figures.int8 = int8()
    if "tokenizing" in studies:
        figures.tokenizing = tokenizing()


def _traces(sizes: RunSizes) -> list[Trace]:
    opened = Bundle.open(bundle())
    log_normal = [lengths.trace(_SEQUENCES, opened.manifest.vocabulary_size) for lengths in (MEDIAN_30, MEDIAN_90)]
    if not sizes.all_traces:
        return log_normal[:1]
    return [*log_normal, real_sentences(_SEQUENCES, opened.folder / TOKENIZER, opened.manifest.max_tokens)]


if __name__ == "__main__":
    main()
