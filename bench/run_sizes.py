"""Sizes of a run of the benchmarks: the full run takes about an hour, the quick one about 10 minutes."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RunSizes:
    """Numbers of rounds and lengths of the loads; the defaults are those of the full run.

    Attributes:
        rounds: rounds of each comparison; the tables show medians over the rounds.
        trace_tokens: tokens of the trace of a closed loop.
        poison_repeats: times that trace is repeated while some sequences are poisoned.
        sweep_tokens: tokens of the trace for tuning settings, and for other numbers of requesters.
        all_requesters: whether to run with other numbers of requesters than 32.
        open_s: seconds of an open loop below capacity.
        compared_s: seconds of the open loops whose latencies are compared.
        overload_s: seconds of an open loop beyond capacity.
        failover_s: minimum seconds of calls while replicas stop and start.
        all_traces: whether to run all traces, or only the first.
    """

    rounds: int = 3
    trace_tokens: int = 12_000
    poison_repeats: int = 10
    sweep_tokens: int = 4_000
    all_requesters: bool = True
    open_s: float = 8.0
    compared_s: float = 16.0
    overload_s: float = 60.0
    failover_s: float = 30.0
    all_traces: bool = True


FULL = RunSizes()
QUICK = RunSizes(
    rounds=1,
    trace_tokens=6_000,
    poison_repeats=2,
    sweep_tokens=2_000,
    all_requesters=False,
    open_s=5.0,
    compared_s=5.0,
    overload_s=5.0,
    failover_s=12.0,
    all_traces=False,
)
