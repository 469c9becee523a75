"""What the figures of a check decide, with the place in the code, and which goals hold."""

from collections.abc import Mapping, Sequence

from bench.findings import Finding, Findings, format_number

_BUCKETS = "server/headwaiter_server/runtime/shape_buckets.py"
_FLAGS = "server/headwaiter_server/settings/flags.py"
# Each decision, and the constant or default that holds it.
PLACES: Mapping[str, str] = {
    "CUDA graphs": f"{_BUCKETS}: GRAPH_TOKENS",
    "CUDA graphs of kernels with parameters in host memory": "server/headwaiter_server/runtime/graph.py: cuda_graphs",
    "number of CUDA graphs": f"{_BUCKETS}: _MAX_GRAPH_SEQUENCES",
    "CUDA graphs for one caller": f"{_BUCKETS}: GRAPH_TOKENS",
    "CUDA graphs for many callers": f"{_BUCKETS}: GRAPH_TOKENS",
    "next kernels to improve": "export/headwaiter_export/graphs/packed_cuda.py: PackedCuda",
    "largest token budget": "server/headwaiter_server/models/calibration.py: _LARGEST_BUDGET_TOKENS",
    "--instances": f"{_FLAGS}: instances",
    "--front-ends": f"{_FLAGS}: front_ends",
}
SHORT = "one sequence of 32 tokens, fp16"
# Names of findings with bounds.
VARIABLE = "throughput in process / PyTorch, variable-length flash attention"
MODERN_BERT = "ModernBERT-base's shape: throughput in process / PyTorch"
SERVED = "throughput served / in process"
SESSION, P50 = f"{SHORT}: session with CUDA graphs, ms", f"{SHORT}: served by default, p50 ms"
CALLS = "one text a call, 8 front ends, 128 in flight: calls/s"
MEMORY = "GPU memory after random shapes / after warm-up"
GOALS = (VARIABLE, MODERN_BERT, SERVED, SESSION, P50, CALLS, MEMORY)


def decide(findings: Findings, subject: str, choice: str) -> None:
    """Record what the figures before this one decide."""
    findings.record(_decision(subject), f"{choice} ({PLACES[subject]})")


def compare(value: float, other: float) -> str:
    """Return both numbers, and which is larger."""
    return f"{format_number(value)} {'<' if value < other else '≥'} {format_number(other)}"


def report(findings: Sequence[Finding], gpu: str) -> str:
    """Return the decisions, and which goals hold, on a GPU."""
    found = {each.name: each for each in findings if each.measured is not None}
    lines = [f"Decisions, measured on {gpu}:\n"]
    for subject in PLACES:
        decision = found.get(_decision(subject))
        lines.append(f"- {subject}: {decision.measured if decision else 'open, because figures are missing'}")
    lines.append(f"\nGoals, measured on {gpu}:\n")
    for name in GOALS:
        goal = found.get(name)
        told = f"{format_number(goal.number)} {goal.sign} {goal.bound}: {goal.verdict}" if goal else "not measured"
        lines.append(f"- {name}: {told}")
    return "\n".join(lines)


def _decision(subject: str) -> str:
    return f"decision: {subject}"
