"""The figures of the servers, and their table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bench.findings import table
from bench.rounds import Rounds

# Above this share of its core, the load generator may limit the load.
MAX_BUSY = 0.8


@dataclass(frozen=True)
class Measured:
    """The figures of one load on one server.

    Attributes:
        tokens_per_cpu_s: tokens for each CPU second of all processes of the server.
        alone_p50_ms: p50 of the latency with one requester.
        memory_mib: memory of all processes of the server after the load, with shared pages counted once.
        lowest_cosine: the lowest cosine similarity to Headwaiter's vectors in fp32.
        busy: share of its core that the load generator used.
    """

    requests_per_s: float
    tokens_per_cpu_s: float
    p50_ms: float
    p99_ms: float
    alone_p50_ms: float
    memory_mib: float
    lowest_cosine: float
    busy: float


@dataclass(frozen=True)
class Row:
    """A server with one trace.

    Attributes:
        server: name with the version.
        batches: how the server batches.
        takes: "token ids" or "texts".
        rounds: the figures by the number of the round; a round that failed has none.
    """

    server: str
    batches: str
    takes: str
    rounds: dict[int, Measured] = field(default_factory=dict)

    def figure(self, name: str) -> Rounds:
        """Return one figure of each round."""
        return Rounds(getattr(each, name) for each in self.rounds.values())


def ratio(ours: Row, theirs: Row) -> Rounds:
    """Return requests/s of ours / theirs in each round in which both were measured."""
    both = sorted(ours.rounds.keys() & theirs.rounds.keys())
    return Rounds(ours.rounds[number].requests_per_s / theirs.rounds[number].requests_per_s for number in both)


def trace_table(rows: Sequence[Row]) -> str:
    """Return the table of one trace; the first row is Headwaiter's, with which all are compared."""
    lines = [_line(row, rows[0]) for row in rows if row.rounds]
    header = ["server", "batches", "takes", "requests/s", "requests/s: Headwaiter fp32 / this server", "tokens / CPU s"]
    header += ["p50 ms", "p99 ms", "p50 ms with 1 requester", "MiB", "lowest cosine"]
    return table(header, lines)


def _line(row: Row, ours: Row) -> list[str]:
    ratios = ratio(ours, row)
    return [
        row.server,
        row.batches,
        row.takes,
        f"{row.figure('requests_per_s'):.0f}",
        f"{ratios:.2f}" if ratios else "–",
        f"{row.figure('tokens_per_cpu_s'):,.0f}",
        f"{row.figure('p50_ms'):.0f}",
        f"{row.figure('p99_ms'):.0f}",
        f"{row.figure('alone_p50_ms'):.1f}",
        f"{row.figure('memory_mib'):.0f}",
        f"{min(each.lowest_cosine for each in row.rounds.values()):.4f}",
    ]


def busy_generator(rows: Sequence[Row]) -> str:
    """Return a sentence about the load generator: its largest share of a core, and the servers that it may limit."""
    busiest = {row.server: max(row.figure("busy")) for row in rows if row.rounds}
    limited = [f"{server} ({busy:.0%})" for server, busy in busiest.items() if busy > MAX_BUSY]
    if limited:
        return f"The load generator may have limited {', '.join(limited)}: it used this share of its core."
    most = max(busiest.values(), default=0.0)
    return f"The load generator used at most {most:.0%} of its core, so it limited no server."


def failures(problems: Mapping[str, str]) -> str:
    """Return a list of the servers that could not be measured, with the causes."""
    return "\n".join(f"- {server}: not measured, because {cause}" for server, cause in problems.items())
