"""Runs the benchmarks on one machine and prints their tables; a run of all studies also writes docs/benchmarks."""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.loads.traces import MEDIAN_30, MEDIAN_90, Trace, real_sentences
from bench.measure import Fleet
from bench.report import charts, page, tables
from bench.run import FULL, QUICK, Figures, Run, RunSizes
from bench.studies.hostile_http import hostile_http
from bench.studies.int8 import INT8, int8
from bench.studies.open_loop import open_loops
from bench.studies.overheads import poison, single_request
from bench.studies.planning import planning_costs
from bench.studies.scheduler_alone import scheduler_alone
from bench.studies.throughput import throughput
from headwaiter_server.runtime.bundle import TOKENIZER, Bundle
from testbed.minilm import ROOT, bundle

# Each study takes the run, and returns the rows of its table if it has one.
STUDIES: dict[str, Callable[[Run], list[Any] | None]] = {
    "throughput": throughput,
    "load": open_loops,
    "alone": single_request,
    "poison": poison,
    "hostile-http": hostile_http,
    "planning": planning_costs,
    "scheduler": scheduler_alone,
    INT8: int8,
}
_SEQUENCES = 2000


def main() -> None:
    """Run the studies that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    studies_help = f"studies to run, of {', '.join(STUDIES)} (default: all); load also runs throughput"
    parser.add_argument("studies", nargs="*", choices=[[], *STUDIES], metavar="STUDY", help=studies_help)
    quick_help = "one trace, one round and 32 requesters; writes nothing into docs"
    parser.add_argument("--quick", action="store_true", help=quick_help)
    json_help = "file for the figures; the charts are drawn beside it (default: build/benchmarks.json)"
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "benchmarks.json", help=json_help)
    arguments = parser.parse_args()
    chosen = set(arguments.studies or STUDIES)
    if "load" in chosen:
        chosen.add("throughput")
    sizes = QUICK if arguments.quick else FULL
    figures, started_s = Figures(sizes.rounds), time.monotonic()
    try:
        with Fleet() as fleet:
            run = Run(sizes, fleet, _traces(sizes), figures)
            for name, study in STUDIES.items():
                if name in chosen and (rows := study(run)):
                    figures.tables[name] = rows
    finally:
        # A run that fails keeps the figures of its finished studies.
        minutes = (time.monotonic() - started_s) / 60
        arguments.json.parent.mkdir(exist_ok=True)
        arguments.json.write_text(figures.to_json(), encoding="utf-8")
        charts.draw(arguments.json)
        print(*tables.sections(figures).values(), f"{minutes:.1f} minutes", sep="\n\n")
    if sizes is FULL and chosen == set(STUDIES):
        page.FIGURES.write_text(figures.to_json(), encoding="utf-8")
        page.write()


def _traces(sizes: RunSizes) -> list[Trace]:
    opened = Bundle.open(bundle())
    log_normal = [lengths.trace(_SEQUENCES, opened.manifest.vocabulary_size) for lengths in (MEDIAN_30, MEDIAN_90)]
    if not sizes.all_traces:
        return log_normal[:1]
    return [*log_normal, real_sentences(_SEQUENCES, opened.folder / TOKENIZER, opened.manifest.max_tokens)]


if __name__ == "__main__":
    main()
