"""Check the graphs of a new bundle against PyTorch, before the bundle is moved to its destination.

`export.py` calls these functions on the graphs that it has written. They run the graphs on the sequences of a
reference, compare the differences from PyTorch with the tolerances, report them, and collect the bundle's parity. For
int8, they also measure how many sentences keep their nearest neighbour, and how many scores their order.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from headwaiter_export.bundle.atomic_folder import BundleError
from headwaiter_export.bundle.graphs import GraphPlan
from headwaiter_export.bundle.padding import mixed_lengths, problem_beside
from headwaiter_export.config.choices import Pooling
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_export.encoder.found_attention import NotPackableError
from headwaiter_export.encoder.reference import (
    EDGE_SEQUENCES,
    SHORT_SEQUENCES,
    SHORT_TOKENS,
    Reference,
    Sequence,
    concatenate,
    inputs_of,
    normalize_outputs,
)
from headwaiter_export.graphs.attention_weights import AttentionWeightsLayout
from headwaiter_export.graphs.int8 import PackedBatches, nearest
from headwaiter_export.graphs.ranges import SCORES
from headwaiter_export.graphs.tracing import free_memory
from headwaiter_proto.encoder_pb2 import (
    ISOLATION_MIXED,
    PRECISION_BF16,
    PRECISION_FP32,
    PRECISION_INT8,
    Isolation,
    Precision,
)
from headwaiter_proto.manifest_pb2 import LOWERING_PORTABLE, Parity
from headwaiter_server.runtime.attention_weights import ATTENTION_OUTPUTS, AttentionSelection, AttentionWeightsGraph
from headwaiter_server.runtime.errors import ProviderUnavailable, one_line
from headwaiter_server.runtime.graph import EncoderGraph, GraphOutputs, Provider
from headwaiter_server.runtime.isolation import batches_of
from headwaiter_server.runtime.numeric_tolerances import (
    TOLERANCES,
    Difference,
    difference,
    largest_differences,
    smallest_cosine,
    violation,
)
from headwaiter_server.runtime.packing import TARGET, pack

# The attention weights of all layers and heads are large arrays, so few and short sequences are compared.
_WEIGHTS_SEQUENCES = 6
_WEIGHTS_LONGEST_TOKENS = 128
# Called with one line for each finished step.
Report = Callable[[str], object]
# Largest accepted difference: absolute for attention weights; for contexts, divided by the largest value of a context.
_ATTENTION_MAX_ABS = 1e-5
# Smallest accepted cosine of context vectors: contexts that are tiny beside others may be wrong at a small difference.
_CONTEXT_MIN_COSINE = 0.99999
# Memory for one copy of the scores of one sequence in a padded graph. The graph holds several copies, each with the
# scores of all heads.
_PADDED_SCORES_BYTES = 1 << 28
# float32 rounds larger attention scores by up to more than the tolerance of vectors, 1e-5.
_LARGE_SCORE = 256
# A trained model should keep at least this share of the nearest neighbours, and of the orders of scores, in int8:
# promised in docs/explanation/numerics.md.
PROMISED_SHARE = 0.95


def measure_graph(
    path: Path, provider: Provider, reference: Reference, isolation: Isolation = ISOLATION_MIXED
) -> Difference:
    """Run a graph on batches of one sequence and of several, and return its difference from PyTorch.

    `isolation` says which sequences may share a batch.

    Raises:
        ProviderUnavailable: this machine cannot use the provider.
        BundleError: ONNX Runtime cannot run the graph.
    """
    graph = EncoderGraph.open(path, provider, threads=1)
    # Indices of the sequences in each batch: each edge alone, all edges together, then the others in mixed batches.
    edges, others = list(range(EDGE_SEQUENCES)), list(range(EDGE_SEQUENCES, SHORT_SEQUENCES))
    batches = [[edge] for edge in edges] + [edges] + [others[i : i + 8] for i in range(0, len(others), 8)]
    # Then each long sequence alone, and the shortest of them together with the shortest edges.
    long = list(range(SHORT_SEQUENCES, len(reference.sequences)))
    batches += [[i] for i in long] + [[*edges[:-1], i] for i in long[:1]]
    lengths = [len(sequence) for sequence in reference.sequences]
    parts = [part for batch in batches for part in batches_of(batch, [lengths[i] for i in batch], isolation)]
    try:
        outputs = [graph.run(pack([reference.sequences[i] for i in part]), hidden=True) for part in parts]
    except Exception as error:
        # ONNX Runtime raises many types.
        raise BundleError(
            f"ONNX Runtime cannot run {path.name} ({one_line(error)}): a part of the module may depend on "
            "the length, or on values"
        ) from error
    expected = concatenate([reference.outputs[i] for batch in batches for i in batch])
    return difference(normalize_outputs(reference.config, concatenate(outputs)), expected)


def check_packing(path: Path, reference: Reference) -> None:
    """Check that each sequence of a packed graph gets its own result, bit for bit whatever is beside it.

    Raises:
        NotPackableError: a result is out of tolerance, or depends on other sequences.
    """
    graph = EncoderGraph.open(path, "cpu", threads=1)
    short = reference.only(lambda tokens: tokens <= SHORT_TOKENS)
    alone = concatenate([graph.run(pack([each]), hidden=True) for each in short.sequences])
    expected = concatenate(short.outputs)
    if broken := violation(difference(normalize_outputs(reference.config, alone), expected), PRECISION_FP32):
        raise NotPackableError(
            "",
            f"the graph of a sequence alone differs from the module: {broken}; a part of the module besides attention "
            "may use several rows, or the vectors are nearly zero",
        )
    if problem := problem_beside(graph, reference, mixed_lengths(reference.config)):
        raise NotPackableError(
            "",
            f"a sequence beside others {problem}: the module mixes rows outside attention, for example in a "
            "convolution or a sum over rows, or its positions depend on the length",
        )


def check_graphs(
    plans: Collection[GraphPlan],
    folder: Path,
    reference: Reference,
    magnitudes: Mapping[str, float],
    report: Report,
    step: Report,
    source: str = "PyTorch",
    isolation: Isolation = ISOLATION_MIXED,
) -> Parity:
    """Return the differences from the reference of all graphs that can run on this machine.

    `magnitudes` are those of `ActivationRanges`, `source` is what messages call the reference, and `isolation` says
    which sequences may share a batch.

    Raises:
        BundleError: a graph is out of tolerance; the message names the graph, its difference and the limit.
    """
    parity = Parity()
    longest, most = max(map(len, reference.sequences)), reference.config.max_tokens
    if longest < most:
        report(f"graphs are checked on sequences of up to {longest:,} tokens: {most:,} would take too long")
    for plan in plans:
        step(f"comparing {plan.file} with {source}")
        free_memory()
        try:
            whole_scores = plan.lowering == LOWERING_PORTABLE or plan.precision == PRECISION_BF16
            checked = without_too_long(reference, reference.config.heads) if whole_scores else reference
            measured = measure_graph(folder / plan.file, plan.provider, checked, isolation)
        except ProviderUnavailable:
            device = plan.provider.upper()
            report(f"{plan.file}: not run, because this machine has no {device}; a server checks it at its start")
            continue
        if broken := violation(measured, plan.stored):
            saturated = _saturated_attention(magnitudes) if plan.stored == PRECISION_FP32 else None
            remedies = [*([saturated] if saturated else []), "--graphs and --precision leave graphs out"]
            raise BundleError(f"{plan.file} is out of tolerance: {broken}; {'; '.join(remedies)}")
        gives_rows = reference.outputs[0].hidden is not None
        described = _describe(measured, plan.stored, reference.config, gives_rows=gives_rows)
        if plan.stored != plan.precision:
            report(f"{plan.file}: compared with {source} in fp32, {described}; a server checks bf16 at its start")
            continue
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
        report(f"{plan.file}: compared with {source}, {described}")
    return parity


def _saturated_attention(magnitudes: Mapping[str, float]) -> str | None:
    """Return a clause about attention scores that are too large for float32, or None."""
    scores = {name: magnitude for name, magnitude in magnitudes.items() if name.endswith(SCORES)}
    name = max(scores, key=scores.__getitem__, default="")
    if not name or scores[name] <= _LARGE_SCORE:
        return None
    return (
        f"{name} reach {scores[name]:.4g}, so that the model amplifies rounding errors of float32, in PyTorch too: "
        "check its weights, and the fields of config.json that scale scores"
    )


def _describe(measured: Difference, precision: Precision, config: EncoderConfig, *, gives_rows: bool) -> str:
    """Describe what decides: the smallest cosine, and each difference that the precision limits by itself.

    `violation` compares the smaller one of an absolute and a relative difference.
    """
    tolerance = TOLERANCES[precision]
    kinds = []
    if gives_rows:
        kinds.append(("hidden rows", measured.hidden_max_abs, measured.hidden_max_relative, tolerance.hidden))
    if config.pooling is not Pooling.NONE:
        kinds.insert(0, ("vectors", measured.pooled_max_abs, measured.pooled_max_relative, tolerance.pooled))
    if config.head:
        kinds.append(("logits", measured.logits_max_abs, measured.logits_max_relative, tolerance.logits))
    differences = [
        f"{name} differ by at most {min(absolute, relative):.1e} (limit {limit:g})"
        for name, absolute, relative, limit in kinds
        if limit is not None
    ]
    return ", ".join([*differences, f"cosine at least {measured.min_cosine:.7f} (limit {tolerance.min_cosine:g})"])


def without_too_long(reference: Reference, cell_values: int) -> Reference:
    """Leave out the sequences whose scores, `cell_values` for each pair, would need too much memory when padded."""
    most_tokens = math.isqrt(_PADDED_SCORES_BYTES // (4 * max(1, cell_values)))
    return reference.only(lambda tokens: tokens <= max(most_tokens, SHORT_TOKENS))


@dataclass(frozen=True, eq=False)
class AttentionReference:
    """PyTorch's attention weights and contexts of some short sequences.

    Attributes:
        config: configuration of the encoder.
        sequences: token ids or features.
        weights: for a sequence of n tokens, those of all layers and heads, [layers, heads, n, n].
        contexts: those of the query in the middle, [layers, heads, value_dim].
    """

    config: EncoderConfig
    sequences: list[Sequence]
    weights: list[NDArray[np.float32]]
    contexts: list[NDArray[np.float32]]

    @classmethod
    @torch.inference_mode()
    def compute(cls, encoder: Encoder, reference: Reference) -> "AttentionReference":
        """Compute the attention weights for the first short sequences of a reference."""
        sequences = [each for each in reference.sequences if len(each) <= _WEIGHTS_LONGEST_TOKENS]
        sequences = sequences[:_WEIGHTS_SEQUENCES]
        weights, contexts = [], []
        for sequence in sequences:
            inputs = inputs_of(encoder.config, sequence)
            names = {"tokens": encoder.config.token_input, "target": TARGET + encoder.config.token_input}
            layout = AttentionWeightsLayout({names[each]: rows for each, rows in inputs.items() if each in names})
            expected = layout.outputs(*encoder(layout=layout, **inputs)[:2])
            kinds = len(ATTENTION_OUTPUTS)
            weights.append(torch.stack(expected[::kinds]).numpy())
            contexts.append(torch.stack(expected[1::kinds])[:, :, len(sequence) // 2].numpy())
        return cls(encoder.config, sequences, weights, contexts)


def measure_attention_weights(path: Path, reference: AttentionReference) -> tuple[float, float]:
    """Return the largest difference of attention weights and contexts from PyTorch's, and the smallest cosine.

    Differences of contexts are divided by the largest context of the sequence if that exceeds 1. Cosines are those of
    the context vectors of each head, without heads whose vectors are negligible in their layer. Values that are not
    finite give an infinite difference.
    """
    graph, config = AttentionWeightsGraph.open(path), reference.config
    differences, cosines = [], []
    for sequence, weights, contexts in zip(reference.sequences, reference.weights, reference.contexts, strict=True):
        selection = AttentionSelection(range(config.attention_layers), range(config.heads), len(sequence) // 2)
        actual = graph.run(sequence, selection)
        assert actual.context is not None
        differences += [
            min(largest_differences(actual.weights, weights)),
            min(largest_differences(actual.context, contexts)),
        ]
        cosines += [smallest_cosine(*layer) for layer in zip(actual.context, contexts, strict=True)]
    return max(differences), min(cosines)


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


@dataclass(frozen=True, eq=False)
class MeasuredSentences:
    """Sentences in batches, and PyTorch's results for each of them, in the order of the batches.

    Attributes:
        batches: the sentences.
        nearest: index of the nearest neighbour of each sentence; None without pooling.
        logits: logits [sentences, labels]; None without a head that scores sequences.
    """

    batches: list[list[Sequence]]
    nearest: NDArray[np.int64] | None
    logits: NDArray[np.float32] | None

    @classmethod
    def of(cls, encoder: Encoder, sentences: list[Sequence]) -> "MeasuredSentences | None":
        """Run the sentences in PyTorch; return None for less than two sentences, or without results to compare."""
        head = encoder.config.head
        scores = head is not None and not head.per_token
        if len(sentences) < 2 or (encoder.config.pooling is Pooling.NONE and not scores):
            return None
        batches = PackedBatches(encoder.config, sentences)
        return cls(batches.sequences, *_results(batches.outputs(encoder), scores=scores))


def _results(outputs: GraphOutputs, *, scores: bool) -> tuple[NDArray[np.int64] | None, NDArray[np.float32] | None]:
    neighbours = None if outputs.pooled is None else nearest(outputs.pooled)
    return neighbours, np.concatenate(outputs.logits) if scores and outputs.logits is not None else None


def measure_sentences(parity: Parity, folder: Path, sentences: MeasuredSentences, report: Report) -> None:
    """Measure how many sentences keep their nearest neighbour in int8, and how many pairs of scores their order.

    The shares are added to the graph's parity.
    """
    (int8,) = (graph for graph in parity.graphs if graph.precision == PRECISION_INT8)
    graph = EncoderGraph.open(folder / int8.graph, "cpu", threads=1)
    outputs = concatenate([graph.run(pack(batch), hidden=False) for batch in sentences.batches])
    neighbours, logits = _results(outputs, scores=sentences.logits is not None)
    count = sum(map(len, sentences.batches))
    if sentences.nearest is not None and neighbours is not None:
        int8.same_nearest_neighbour = float((neighbours == sentences.nearest).mean())
        report(
            f"{int8.graph}: {int8.same_nearest_neighbour:.1%} of {count} sentences that int8 was not calibrated on "
            f"keep their nearest neighbour{_warning(int8.same_nearest_neighbour)}"
        )
    if sentences.logits is not None and logits is not None:
        int8.same_order = same_order(logits, sentences.logits)
        report(
            f"{int8.graph}: of each two of {count} inputs that int8 was not calibrated on, {int8.same_order:.1%} keep "
            f"the order of their scores{_warning(int8.same_order)}"
        )


def same_order(actual: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """Return the share of pairs of rows of logits [n, labels] that a label puts in the same order in both arrays.

    Pairs that are equal in `expected` have no order, and do not count; without others, the share is 1.
    """
    first, second = np.triu_indices(len(expected), 1)
    order = np.sign(expected[first] - expected[second])
    same = np.sign(actual[first] - actual[second]) == order
    return float(same[order != 0].mean()) if order.any() else 1.0


def _warning(share: float) -> str:
    return "" if share >= PROMISED_SHARE else f", below the {PROMISED_SHARE:.0%} that trained models should reach"
