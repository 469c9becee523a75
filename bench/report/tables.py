"""The tables that the benchmarks print."""

from collections.abc import Iterable, Mapping
from typing import Any

from bench.findings import HOLDS, table
from bench.measure import median, ratio, rounds_of
from bench.run import Figures
from bench.studies.int8 import INT8
from bench.studies.open_loop import OpenLoop
from bench.studies.throughput import REQUESTERS, Throughput

# The columns of each study's table: their headers, and the format of their cells.
COLUMNS = {
    "targets": {
        "load": "{row.part}",
        "figure": "{row.name}",
        "measured": "{row.number:.2f}",
        "target": "{row.sign} {row.bound:g}",
        "met": "{met}",
    },
    "throughput": {
        "server (setting)": "{label}",
        "requests/s": "{row.requests_per_s:.0f}",
        "tokens/s": "{row.tokens_per_s:,.0f}",
        "tokens/s: Headwaiter / server": "{ratio:.2f}",
        "tokens per CPU second": "{row.tokens_per_cpu_s:,.0f}",
        "useful rows": "{row.useful_rows:.0%}",
        "useful cells": "{row.useful_cells:.0%}",
        "p50 ms": "{row.p50_ms:.0f}",
        "p95 ms": "{row.p95_ms:.0f}",
        "p99 ms": "{row.p99_ms:.0f}",
    },
    "load": {
        "load": "{load:.0%}",
        "server (setting)": "{label}",
        "sustained": "{sustained}",
        "goodput, requests/s": "{row.goodput_per_s:.1f}",
        "p50 ms": "{row.p50_ms:.0f}",
        "p95 ms": "{row.p95_ms:.0f}",
        "p99 ms": "{row.p99_ms:.0f}",
        "p50 of the shortest quarter, ms": "{row.short_p50_ms:.0f}",
        "p99 of the shortest quarter, ms": "{row.short_p99_ms:.0f}",
        "refused, requests/s": "{row.refused_per_s:.1f}",
        "p99 of refusals, ms": "{row.refused_p99_ms:.1f}",
    },
    "hostile-http": {
        "meanwhile over HTTP": "{row.kind}",
        "HTTP requests/s: same server": "{row.same.hostile_per_s:,.0f}",
        "HTTP requests/s: another server": "{row.other.hostile_per_s:,.0f}",
        "p50: same server": "{row.same_ratios.p50_s:.2f}",
        "p50: another server": "{row.other_ratios.p50_s:.2f}",
        "p99: same server": "{row.same_ratios.p99_s:.2f}",
        "p99: another server": "{row.other_ratios.p99_s:.2f}",
    },
    "planning": {
        "waiting sequences": "{row.waiting:,}",
        "plan, µs per sequence": "{row.plan_us:.1f}",
        "add to the queue, µs per sequence": "{row.add_us:.1f}",
    },
    "scheduler": {
        "models": "{row.models}",
        "callers": "{row.callers:,}",
        "most sequences per batch": "{row.largest_batch:,}",
        "CPU µs per sequence": "{row.cpu_us:.1f}",
        "sequences/s": "{row.sequences_per_s:,.0f}",
        "sequences per batch": "{row.sequences_per_batch:,.1f}",
    },
    INT8: {
        "trace": "{row.trace}",
        "fp32, tokens per CPU second": "{row.fp32_tokens_per_cpu_s:,.0f}",
        "int8, tokens per CPU second": "{row.int8_tokens_per_cpu_s:,.0f}",
        "int8 / fp32": "{row.ratio:.2f}",
    },
}


def sections(figures: Figures) -> dict[str, str]:
    """Return the table of each study that ran, by the name of the study, and the table of the targets."""
    targets = [
        {"row": finding, "met": "yes" if finding.verdict == HOLDS else "**no**"}
        for finding in figures.findings.found
        if finding.sign
    ]
    tables = {"targets": _table(COLUMNS["targets"], targets)} if targets else {}
    for study, rows in figures.tables.items():
        if study == "throughput":
            tables[study] = "\n\n".join(map(_throughput, rows))
        elif study == "load":
            tables[study] = "\n\n".join(map(_open_loop, rows))
        elif rows:
            tables[study] = _table(COLUMNS[study], ({"row": row} for row in rows))
    if INT8 in tables:
        accuracy = [f"- {each.name}: {each.measured}" for each in figures.findings.found if each.part == INT8]
        tables[INT8] += "\n\n" + "\n".join(accuracy)
    return tables


def _throughput(closed: Throughput) -> str:
    ours = closed.headwaiter.rounds
    columns = dict(COLUMNS["throughput"])
    for requesters in closed.headwaiter.other_requesters:
        plural = "s" if requesters > 1 else ""
        columns[f"tokens/s with {requesters} requester{plural}"] = f"{{others[{requesters}].tokens_per_s:,.0f}}"
    rows = [
        {
            "row": median(server.rounds),
            "label": f"{server.setup.label}{', tuned' if server.best and not server.usual else ''}",
            "ratio": ratio(ours, server.rounds, "tokens_per_s"),
            "others": server.other_requesters,
        }
        for server in closed.servers
    ]
    rates = rounds_of(ours, "tokens_per_s")
    waiting, whole = closed.in_process_tokens_per_s, closed.whole_trace_tokens_per_s
    return (
        f"{closed.trace}, {REQUESTERS} requesters:\n\n{_table(columns, rows)}\n\n"
        f"Headwaiter's planner and graph without a server reach {waiting:,.0f} tokens/s with {REQUESTERS} sequences in "
        f"the queue (Headwaiter / in process: {rates / waiting:.2f}) and {whole:,.0f} tokens/s with the whole trace in "
        f"the queue ({rates / whole:.2f}). Ratios are medians over the rounds. "
        f"Matrix products alone, tokens per CPU second: {closed.floor_tokens_per_cpu_s:,.0f}."
    )


def _open_loop(loop: OpenLoop) -> str:
    rows = [
        {
            "row": median(server.rounds),
            "load": server.load,
            "label": server.setup.label,
            "sustained": "yes" if server.sustained else "no",
        }
        for server in sorted(loop.servers, key=lambda server: server.load)
    ]
    return f"{loop.trace}; 100 % load is {loop.capacity_per_s:.1f} requests/s:\n\n{_table(COLUMNS['load'], rows)}"


def _table(columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return a table with one line per row, and with a dash in place of NaN."""
    cells = ([cell.format(**row) for cell in columns.values()] for row in rows)
    return table(list(columns), [["–" if cell == "nan" else cell for cell in line] for line in cells])
