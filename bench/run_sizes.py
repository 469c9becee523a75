"""How long the benchmarks take: about an hour for all of them, some 10 minutes when in haste."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Effort:
    """Sizes of the runs.

    Attributes:
        rounds: of what is compared; figures are medians over them.
        trace_tokens: length of a trace, in every round.
        poison_repeats: how many times that, where sequences are poisoned.
        sweep_tokens: length of a trace where settings are tried, and at other numbers of requesters.
        all_requesters: whether there are runs at other numbers of requesters than 32.
        open_s: seconds of an open loop that a server can sustain.
        compared_s: seconds of those whose tails are compared.
        overload_s: seconds of one that it cannot.
        failover_s: seconds of calls while replicas stop and start; more where they start slowly.
        all_traces: or the first only.
    """

    rounds: int
    trace_tokens: int
    poison_repeats: int
    sweep_tokens: int
    all_requesters: bool
    open_s: float
    compared_s: float
    overload_s: float
    failover_s: float
    all_traces: bool


FULL = Effort(
    rounds=3,
    trace_tokens=12_000,
    poison_repeats=10,
    sweep_tokens=4_000,
    all_requesters=True,
    open_s=8.0,
    compared_s=16.0,
    overload_s=60.0,
    failover_s=30.0,
    all_traces=True,
)
QUICK = Effort(
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
