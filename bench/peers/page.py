"""Write docs/benchmarks/other-servers.md and its chart from the figures of a comparison.

`make bench-peers` does so at its end, if all servers ran. Run `python -m bench.peers.page` to write them again.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from matplotlib import rc_context

from bench.peers.servers import HEADWAITER
from bench.peers.table import Measured, Row, busy_generator, failures, ratio, trace_table
from bench.processes import processor
from bench.report.charts import bars
from testbed.minilm import ROOT

FIGURES = ROOT / "build" / "bench-peers.json"
PAGE, CHART = ROOT / "docs" / "benchmarks" / "other-servers.md", ROOT / "docs" / "benchmarks" / "other-servers.svg"


def write(figures: Path) -> None:
    """Read the JSON file of a comparison, and write the page and the chart."""
    read = json.loads(figures.read_text(encoding="utf-8"))
    traces = {
        trace: [
            Row(
                each["server"],
                each["batches"],
                each["takes"],
                {int(number): Measured(**measured) for number, measured in each["rounds"].items()},
            )
            for each in rows
        ]
        for trace, rows in read["rows"].items()
    }
    everything = [row for rows in traces.values() for row in rows]
    text = Path(__file__).with_name("page.md").read_text(encoding="utf-8")
    page = text.format(
        tables="\n\n".join(f"## {trace}\n\n{trace_table(rows)}" for trace, rows in traces.items()),
        notes=failures(read["not measured"]),
        busy=busy_generator(everything),
        versions=read["versions"],
        processor=processor(),
        rounds=max(len(row.rounds) for row in everything),
        fp32=_spread(traces.values(), HEADWAITER.batches, "packed, fp32"),
        bf16=_spread(traces.values(), "packed, bf16", "packed, bf16"),
    )
    PAGE.write_text("\n".join(page.replace("\n\n\n\n", "\n\n").splitlines()) + "\n", encoding="utf-8")
    _draw(*next(iter(traces.items())))


def _spread(tables: Iterable[Sequence[Row]], ours: str, theirs: str) -> str:
    """Return the lowest and the highest requests/s of Headwaiter / vLLM in a round, for their settings of batches."""
    ratios = [
        each
        for rows in tables
        for row in rows
        for other in rows
        if (row.server, row.batches, other.batches) == (HEADWAITER.name, ours, theirs) and "vLLM" in other.server
        for each in ratio(row, other)
    ]
    return f"{min(ratios):.2f} to {max(ratios):.2f}" if ratios else "–"


def _draw(trace: str, rows: Sequence[Row]) -> None:
    """Draw the throughput and p99 of each server, at its fastest setting in fp32."""
    fp32 = (row for row in rows if row.rounds and not row.batches.endswith(("bf16", "int8")))
    measured = sorted((row for row in fp32 if row.server != rows[0].server), key=_requests_per_s)
    fastest = {row.server: row for row in measured}
    shown = [rows[0], *sorted(fastest.values(), key=_requests_per_s, reverse=True)]
    figure = bars(
        [f"{row.server}\n({row.batches})" for row in shown],
        {
            "requests/s (more is better)": list(map(_requests_per_s, shown)),
            "p99 latency, ms (less is better)": [float(row.figure("p99_ms")) for row in shown],
        },
        f"all-MiniLM-L6-v2 on one CPU core, {trace} tokens, 32 requesters",
        "Each server at its fastest setting; all servers run the same weights in fp32.",
    )
    # Fixed ids and no date, so that the same figures give the same file.
    with rc_context({"svg.hashsalt": "headwaiter"}):
        figure.savefig(CHART, metadata={"Date": None})


def _requests_per_s(row: Row) -> float:
    return float(row.figure("requests_per_s"))


if __name__ == "__main__":
    write(FIGURES)
