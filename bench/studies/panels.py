"""The latencies that the dashboard shows, beside those that callers measure, below and beyond a server's capacity.

Run it with `python -m bench.studies.panels`; it needs Prometheus. Callers send all-MiniLM-L6-v2 one sequence a call at
random times, at half a server's capacity, at its capacity and at twice its capacity, with a deadline. Meanwhile, a real
Prometheus scrapes the server. The table has the p50 and the p99 of answered requests that the dashboard's own
expressions give, the same percentiles at the callers, and the difference. The last column is the p50 of calls to a
server that only echoes: the part of a call's time that no server sees.
"""

import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from bench.loads.raw_calls import closed_loop, open_loop
from bench.loads.traces import MEDIAN_30, MEDIAN_90, Trace
from bench.measure import HEADWAITER, MINIMAL, Fleet, warn_if_late
from bench.processes import LOAD_CORE, pin
from testbed.prometheus import Prometheus, panel_queries, running_prometheus
from testbed.server_process import RunningServer

_PANEL = "Request duration"
_LOADS = (0.5, 1.0, 2.0)
_SECONDS, _ECHO_SECONDS, _DEADLINE_S, _REQUESTERS = 60, 10, 2.0, 32
# Prometheus scrapes twice a second, and the first scrape after the load must have its last requests.
_SETTLE_S = 2.0


def main() -> None:
    """Measure, and print the table."""
    print("| tokens | load | calls/s | refused or late | p50: panel | callers | | p99: panel | callers | | echo p50 |")
    print("|---|---|---|---|---|---|---|---|---|---|---|", flush=True)
    with Fleet() as fleet, TemporaryDirectory() as folder:
        server, echo = fleet[HEADWAITER], fleet[MINIMAL]
        pin(LOAD_CORE)
        with running_prometheus(Path(folder), {"server": server.metrics_url.split("/")[2]}) as prometheus:
            for lengths in (MEDIAN_30, MEDIAN_90):
                trace = lengths.trace(4_000, vocabulary_size=30_000)
                closed = closed_loop(server.address, trace.sequences, _REQUESTERS)
                capacity_per_s = len(closed.answered) / closed.answered_s
                for load in _LOADS:
                    time.sleep(_SETTLE_S)
                    cells = _cells(server, prometheus, trace, load * capacity_per_s)
                    cells.append(_echo_p50(echo, trace, load * capacity_per_s))
                    print(f"| {lengths.name} | {load:g} | {' | '.join(cells)} |", flush=True)


def _cells(server: RunningServer, prometheus: Prometheus, trace: Trace, rate_per_s: float) -> list[str]:
    """Send one load, and return the cells of its line."""
    started_s = time.monotonic()
    load = open_loop(server.address, trace.sequences, rate_per_s, _SECONDS, _DEADLINE_S, seed=0)
    time.sleep(_SETTLE_S)
    window = f"{time.monotonic() - started_s:.0f}s"
    warn_if_late(load)
    latencies_s = [outcome.latency_s for outcome in load.answered]
    failed = 1 - len(latencies_s) / len(load.outcomes)
    cells = [f"{rate_per_s:.0f}", f"{failed:.0%}"]
    for quantile, expression in zip((0.5, 0.99), _expressions(window), strict=True):
        panel_s, callers_s = prometheus.value(expression), float(np.quantile(latencies_s, quantile))
        cells += [f"{panel_s * 1e3:.1f} ms", f"{callers_s * 1e3:.1f} ms", f"{panel_s / callers_s - 1:+.1%}"]
    return cells


def _echo_p50(echo: RunningServer, trace: Trace, rate_per_s: float) -> str:
    load = open_loop(echo.address, trace.sequences, rate_per_s, _ECHO_SECONDS, None, 0, "/echo/unary-1600")
    return f"{float(np.median([outcome.latency_s for outcome in load.answered])) * 1e3:.1f} ms"


def _expressions(window: str) -> list[str]:
    """Return the panel's queries of the p50 and of the p99, for one window."""
    queries = [expression for title, expression in panel_queries(__rate_interval=window) if title == _PANEL]
    return [next(each for each in queries if f"histogram_quantile({quantile}," in each) for quantile in ("0.5", "0.99")]


if __name__ == "__main__":
    main()
