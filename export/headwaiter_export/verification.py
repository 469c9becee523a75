"""Check the graphs of a new bundle against PyTorch, before the bundle is moved to its destination.

`bundle.py` calls these functions on the graphs that it has written. `parity.py` runs the graphs and measures their
differences; this module compares the differences with the tolerances, reports them, and collects the bundle's parity.
"""

import math
from collections.abc import Callable, Collection
from pathlib import Path

from headwaiter_export.atomic_folder import BundleError
from headwaiter_export.choices import Pooling
from headwaiter_export.config import EncoderConfig
from headwaiter_export.graph_plans import GraphPlan
from headwaiter_export.memory import free_memory
from headwaiter_export.nearest_neighbours import PROMISED_SHARE, Neighbours, same_nearest_neighbour
from headwaiter_export.parity import (
    SHORT_TOKENS,
    AttentionReference,
    Reference,
    measure_attention_weights,
    measure_graph,
)
from headwaiter_proto.encoder_pb2 import PRECISION_INT8, Precision
from headwaiter_proto.manifest_pb2 import LOWERING_PORTABLE, Parity
from headwaiter_server.runtime.errors import ProviderUnavailable
from headwaiter_server.runtime.numeric_tolerances import TOLERANCES, Difference, violation

# Called with one line for each finished step.
Report = Callable[[str], object]

# Largest accepted difference: absolute for attention weights; for contexts, divided by the largest value of a context.
_ATTENTION_MAX_ABS = 1e-5
# Smallest accepted cosine of context vectors: contexts that are tiny beside others may be wrong at a small difference.
_CONTEXT_MIN_COSINE = 0.99999

# Memory for one copy of the scores of one sequence in the portable graph. The graph holds several copies, each with the
# scores of all heads. No server of ours runs it.
_PORTABLE_SCORES_BYTES = 1 << 28


def check_graphs(
    plans: Collection[GraphPlan], folder: Path, reference: Reference, report: Report, step: Report
) -> Parity:
    """Return the differences from PyTorch of all graphs that can run on this machine.

    Raises:
        BundleError: a graph is out of tolerance; the message names the graph, its difference and the limit.
    """
    parity = Parity()
    longest, most = max(map(len, reference.sequences)), reference.config.max_tokens
    if longest < most:
        report(f"graphs are checked on sequences of up to {longest:,} tokens: {most:,} would take too long")
    for plan in plans:
        step(f"comparing {plan.file} with PyTorch")
        free_memory()
        try:
            checked = _without_too_long(reference) if plan.lowering == LOWERING_PORTABLE else reference
            measured = measure_graph(folder / plan.file, plan.provider, checked)
        except ProviderUnavailable:
            report(f"{plan.file}: not measured, because this machine has no {plan.provider.upper()}")
            continue
        if broken := violation(measured, plan.precision):
            raise BundleError(f"{plan.file} is out of tolerance: {broken}")
        parity.graphs.add(
            graph=plan.file,
            provider=plan.provider,
            precision=plan.precision,
            sequences=len(checked.sequences),
            **measured.published(),
        )
        parity.checks.add(
            graph=plan.file,
            lengths=sorted({len(sequence) for sequence in checked.sequences}),
            hidden_min_cosine=measured.hidden_min_cosine,
        )
        report(f"{plan.file}: largest difference from PyTorch {_describe(measured, plan.precision, reference.config)}")
    return parity


def _describe(measured: Difference, precision: Precision, config: EncoderConfig) -> str:
    """Describe what `violation` compares with the tolerance: of two differences, the smaller one."""
    tolerance = TOLERANCES[precision]
    kinds = [("hidden", measured.hidden_max_abs, measured.hidden_max_relative, tolerance.hidden)]
    if config.pooling is not Pooling.NONE:
        kinds.insert(0, ("pooled", measured.pooled_max_abs, measured.pooled_max_relative, tolerance.pooled))
    if config.head:
        kinds.append(("logits", measured.logits_max_abs, measured.logits_max_relative, tolerance.logits))
    differences = [
        f"{min(absolute, relative):.1e} {name} (limit {limit or tolerance.max_relative:g})"
        for name, absolute, relative, limit in kinds
    ]
    return f"{', '.join(differences)}, smallest cosine {measured.min_cosine:.7f} (limit {tolerance.min_cosine:g})"


def _without_too_long(reference: Reference) -> Reference:
    """Leave out the sequences whose scores would need too much memory in the portable graph."""
    most_tokens = math.isqrt(_PORTABLE_SCORES_BYTES // (4 * reference.config.heads))
    return reference.only(lambda tokens: tokens <= max(most_tokens, SHORT_TOKENS))


def check_attention_weights(path: Path, reference: AttentionReference, report: Report) -> None:
    """Delete the graph of attention weights if it is out of tolerance; very large scores can cause that."""
    measured, cosine = measure_attention_weights(path, reference)
    report(f"{path.name}: largest difference of attention weights from PyTorch {measured:.1e}")
    # `not <=` instead of `>`, so that NaN is out of tolerance too.
    if not (measured <= _ATTENTION_MAX_ABS and cosine >= _CONTEXT_MIN_COSINE):
        report(
            f"{path.name} is left out because its difference exceeds {_ATTENTION_MAX_ABS:g}, or a cosine of contexts "
            f"({cosine:.6f}) is below {_CONTEXT_MIN_COSINE}: a server of this bundle does not offer Attend"
        )
        path.unlink()


def measure_neighbours(parity: Parity, folder: Path, neighbours: Neighbours, report: Report) -> None:
    """Measure how many sentences keep their nearest neighbour in int8, and add the share to the graph's parity."""
    (int8,) = (graph for graph in parity.graphs if graph.precision == PRECISION_INT8)
    share = same_nearest_neighbour(folder / int8.graph, neighbours)
    int8.same_nearest_neighbour = share
    warning = "" if share >= PROMISED_SHARE else f", below the {PROMISED_SHARE:.0%} that trained models should reach"
    report(
        f"{int8.graph}: {share:.1%} of {len(neighbours.expected)} sentences that int8 was not calibrated on keep their "
        f"nearest neighbour{warning}"
    )
