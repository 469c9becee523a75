"""Tables in Markdown, and the page docs/benchmarks.md."""

import math
import platform
import statistics
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path

from bench.measure import median, median_ratio, ratio
from bench.report.figures import Figures
from bench.report.targets import sustained, targets
from bench.studies.open_loop import OpenLoop
from bench.studies.throughput import OTHER_REQUESTERS, REQUESTERS, Throughput

_PAGE = (Path(__file__).with_name("page.md")).read_text(encoding="utf-8")

TARGETS = ("load", "figure", "measured", "target", "met")
THROUGHPUT = (
    *("server (setting)", "requests/s", "tokens/s", "tokens/s: Headwaiter / server", "tokens per CPU second"),
    *("useful rows", "useful cells", "p50 ms", "p95 ms", "p99 ms"),
    *(f"tokens/s, requesters: {requesters}" for requesters in OTHER_REQUESTERS),
)
OPEN_LOOP = (
    *("load", "server (setting)", "sustained", "goodput, requests/s", "p50 ms", "p95 ms", "p99 ms"),
    *("shortest quarter: p50 ms", "shortest quarter: p99 ms", "refused, requests/s", "refusals: p99 ms"),
)
FRONT_END = (
    *("calls", "request bytes", "reply bytes", "requests/s", "requests/s, echo", "requests/s: Headwaiter / echo"),
    *("sequences/s", "CPU µs per request", "CPU µs per request, echo"),
)
PLANNING = ("waiting sequences", "plan, µs per sequence", "add to the queue, µs per sequence")
SHAPES = ("mix", "apart, ms", "together, ms", "together / apart", "peak memory apart, MiB", "peak memory together, MiB")
INT8 = ("trace", "fp32, tokens per CPU second", "int8, tokens per CPU second", "int8 / fp32")
TOKENIZING = ("texts per request", "tokenised, tokens/s", "encoded, tokens/s", "tokenised / encoded")


def sections(figures: Figures) -> dict[str, str]:
    """Return the tables by their names in the page; a study that did not run has no table."""
    tables = {
        "targets": _targets(figures),
        "throughput": "\n\n".join(map(_throughput, figures.throughput)),
        "open_loops": "\n\n".join(map(_open_loop, figures.open_loops)),
        "front_end": _front_end(figures),
        "planning": table(
            PLANNING, [(f"{cost.waiting:,}", f"{cost.plan_us:.1f}", f"{cost.add_us:.1f}") for cost in figures.planning]
        ),
        "shapes": _shapes(figures),
        "int8": _int8(figures),
        "tokenizing": _tokenizing(figures),
    }
    return {name: text for name, text in tables.items() if text}


def page(figures: Figures, minutes: float) -> str:
    """Return the page of a full run."""
    return _PAGE.format(
        processor=_processor(),
        onnxruntime=version("onnxruntime-gpu"),
        grpcio=version("grpcio"),
        python=platform.python_version(),
        rounds=figures.rounds,
        minutes=minutes,
        **sections(figures),
    )


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table with short rows filled up, or nothing if there are no rows."""
    lines = [header, ["---"] * len(header), *([*row, *[""] * (len(header) - len(row))] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) if len(lines) > 2 else ""


def _targets(figures: Figures) -> str:
    rows = [
        (
            each.study,
            each.figure,
            _number(each.measured, 2),
            f"{each.sign} {each.bound:g}",
            "yes" if each.met else "**no**",
        )
        for each in targets(figures)
    ]
    return table(TARGETS, rows)


def _throughput(closed: Throughput) -> str:
    ours = closed.headwaiter.rounds
    rows: list[Sequence[str]] = []
    for server in closed.servers:
        middle = median(server.rounds)
        tuned = server.best and not server.usual
        rows.append(
            (
                f"{server.setup.label}, tuned" if tuned else server.setup.label,
                f"{middle.requests_per_s:.0f}",
                f"{middle.tokens_per_s:,.0f}",
                f"{ratio(ours, server.rounds, 'tokens_per_s'):.2f}",
                f"{middle.tokens_per_cpu_s:,.0f}",
                f"{middle.useful_rows:.0%}",
                f"{middle.useful_cells:.0%}",
                *(f"{latency_ms:.0f}" for latency_ms in (middle.p50_ms, middle.p95_ms, middle.p99_ms)),
                *(f"{other.tokens_per_s:,.0f}" for other in server.other_requesters.values()),
            )
        )
    rates = [each.tokens_per_s for each in ours]
    for waiting, ceiling in (
        (f"{REQUESTERS} sequences waiting", closed.in_process_tokens_per_s),
        ("whole trace waiting", closed.whole_trace_tokens_per_s),
    ):
        measured = f"{median_ratio(rates, ceiling):.2f}"
        rows.append((f"in process, {waiting}", "", f"{statistics.median(ceiling):,.0f}", measured))
    rows.append(("floor", "", "", "", f"{statistics.median(closed.floor_tokens_per_cpu_s):,.0f}"))
    return f"{closed.trace}, {REQUESTERS} requesters:\n\n{table(THROUGHPUT, rows)}"


def _open_loop(loop: OpenLoop) -> str:
    rows = []
    for server in sorted(loop.servers, key=lambda server: server.load):
        middle = median(server.rounds)
        latencies_ms = (middle.p50_ms, middle.p95_ms, middle.p99_ms, middle.short_p50_ms, middle.short_p99_ms)
        rows.append(
            (
                f"{server.load:.0%}",
                server.setup.label,
                "yes" if sustained(server) else "no",
                f"{middle.goodput_per_s:.1f}",
                *(f"{latency_ms:.0f}" for latency_ms in latencies_ms),
                f"{middle.refused_per_s:.1f}",
                _number(middle.refused_p99_ms, 1),
            )
        )
    return f"{loop.trace}; 100 % load is {loop.capacity_per_s:.1f} requests/s:\n\n{table(OPEN_LOOP, rows)}"


def _front_end(figures: Figures) -> str:
    rows = []
    for cost in figures.front_end.costs if figures.front_end else ():
        requests_per_s = statistics.median(cost.requests_per_s)
        rows.append(
            (
                f"{cost.kind}, {cost.sequences} sequence{'s' if cost.sequences > 1 else ''} per request",
                f"{cost.request_bytes:,}",
                f"{cost.reply_bytes:,}",
                f"{requests_per_s:,.0f}",
                f"{statistics.median(cost.echo_requests_per_s):,.0f}",
                f"{cost.ratio:.2f}",
                f"{requests_per_s * cost.sequences:,.0f}",
                f"{statistics.median(cost.request_cpu_us):.0f}",
                f"{statistics.median(cost.echo_request_cpu_us):.0f}",
            )
        )
    return table(FRONT_END, rows)


def _shapes(figures: Figures) -> str:
    rows = []
    for mix in figures.shapes:
        seconds = (f"{mix.apart_s * 1e3:.0f}", f"{mix.together_s * 1e3:.0f}", f"{mix.together_s / mix.apart_s:.2f}")
        rows.append((mix.mix, *seconds, f"{mix.apart_mib:.1f}", f"{mix.together_mib:.1f}"))
    return table(SHAPES, rows)


def _int8(figures: Figures) -> str:
    if figures.int8 is None:
        return ""
    rows = [
        (
            speed.trace,
            f"{speed.fp32_tokens_per_cpu_s:,.0f}",
            f"{speed.int8_tokens_per_cpu_s:,.0f}",
            f"{speed.ratio:.2f}",
        )
        for speed in figures.int8.speeds
    ]
    return f"{table(INT8, rows)}\n\n{figures.int8.accuracy}"


def _tokenizing(figures: Figures) -> str:
    rows = []
    for each in figures.tokenizing:
        rates = [f"{statistics.median(rates):,.0f}" for rates in (each.tokenized_per_s, each.encoded_per_s)]
        rows.append((str(each.texts), *rates, f"{each.ratio:.1f}"))
    return table(TOKENIZING, rows)


def _number(value: float, digits: int) -> str:
    return "–" if math.isnan(value) else f"{value:.{digits}f}"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()
