"""Measure how graphs of callers run: whether sequences beside a sequence change its results, and the largest arrays.

Packed graphs are measured too, before they are taken: a packed graph that changes results is padded instead.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from headwaiter_export.bundle.atomic_folder import BundleError
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.encoder.found_attention import NotPackableError
from headwaiter_export.encoder.reference import (
    EDGE_SEQUENCES,
    SHORT_TOKENS,
    Reference,
    Sequence,
    normalize_outputs,
    random_sequences,
)
from headwaiter_proto.encoder_pb2 import (
    ISOLATION_MIXED,
    ISOLATION_ONE_LENGTH,
    ISOLATION_ONE_SEQUENCE,
    PRECISION_FP32,
    Isolation,
)
from headwaiter_proto.manifest_pb2 import Padding
from headwaiter_server.runtime.errors import one_line
from headwaiter_server.runtime.graph import EncoderGraph, GraphOutputs, open_session, session_options
from headwaiter_server.runtime.numeric_tolerances import difference, violation
from headwaiter_server.runtime.packing import PackedBatch, pack

# Features of this size beside others change what depends on the largest number of a batch.
_LARGE = 1e3
# Tokens of the longer sequence on which arrays are measured. The shorter one has half of them.
_MEASURED_TOKENS = 64
# Most tokens of the sequences whose results are compared beside others. One longer sequence is compared besides.
_FEW_TOKENS = 128

# What the log says of each isolation.
BATCHES = {
    ISOLATION_MIXED: "batches hold all sequences, padded: neither padding nor other sequences change a result",
    ISOLATION_ONE_LENGTH: "batches hold sequences of one length, because padding changes results",
    ISOLATION_ONE_SEQUENCE: "batches hold one sequence, because other sequences change results",
}

# Maps the number of tokens of a sequence to those of the sequences beside it.
Lengths = Callable[[int], list[int]]


def measure_padding(path: Path, reference: Reference, reason: str) -> Padding:
    """Measure how a padded graph runs; `reason` says why it is padded.

    Raises:
        BundleError: the results of one sequence alone differ from the module's.
    """
    isolation = measure_isolation(path, reference)
    config = reference.config
    half = min(config.max_tokens, _MEASURED_TOKENS) // 2
    # If all sequences have one length, all arrays grow with the number of sequences alone.
    lengths = (half, 2 * half) if half >= config.min_tokens else (config.max_tokens,) * 2
    shorter, longer = random_sequences(config, lengths)
    token_values, cell_values = largest_arrays(path, (shorter, longer))
    return Padding(isolation=isolation, reason=reason, token_values=token_values, cell_values=cell_values)


def measure_isolation(path: Path, reference: Reference) -> Isolation:
    """Return which sequences may share a batch of a padded graph.

    Sequences may share a batch if each gets the module's results in it, and if no other sequence and no content of
    padding changes a bit of them.

    Raises:
        BundleError: ONNX Runtime cannot run the graph on one sequence alone, or gives other results than the module.
    """
    try:
        graph = EncoderGraph.open(path, "cpu", threads=1)
    except Exception as error:  # noqa: BLE001 - ONNX Runtime raises many types
        raise BundleError(
            f"ONNX Runtime cannot open {path.name} ({one_line(error)}): export the model again, with another opset or "
            "another exporter"
        ) from None
    if problem := problem_beside(graph, reference, lambda _: []):
        raise BundleError(
            f"{path.name} with a sequence alone {problem}: a part of the module may depend on the length, write it for "
            "sequences of any length"
        )
    if not problem_beside(graph, reference, mixed_lengths(reference.config)):
        return ISOLATION_MIXED
    if not problem_beside(graph, reference, lambda tokens: [tokens] * 2):
        return ISOLATION_ONE_LENGTH
    return ISOLATION_ONE_SEQUENCE


def mixed_lengths(config: EncoderConfig) -> Lengths:
    """Return what gives the lengths beside a sequence: shorter, equal and longer ones.

    The shortest comes first. A module that looks for the rows of a sequence at the start of the batch finds the right
    positions there if the first sequence is longer.
    """
    few, most = _few_tokens(config), min(config.max_tokens, SHORT_TOKENS)

    def lengths(tokens: int) -> list[int]:
        if tokens > few:
            return [config.min_tokens, most]
        return [config.min_tokens, min(2 * tokens + 1, few), few, tokens]

    return lengths


def problem_beside(graph: EncoderGraph, reference: Reference, lengths_beside: Lengths) -> str:
    """Describe how sequences of these lengths beside one change its results; return an empty text if they do not.

    The sequence is the first, the last, or one between. Its results must be the module's within the tolerance, and
    must keep every bit when the sequences beside it and the content of padding change: batches of other lengths may
    round otherwise, but not batches of the same lengths.
    """
    for i, (sequence, expected) in enumerate(_sequences_to_compare(reference)):
        lengths = lengths_beside(len(sequence))
        place = (len(lengths) // 2, 0, len(lengths))[i % 3]
        results = []
        for seed in (2, 3) if lengths else (2,):
            beside: list[NDArray[Any]] = random_sequences(reference.config, lengths, seed)
            if seed == 3 and not reference.config.takes_tokens:
                beside = [rows * np.float32(_LARGE) for rows in beside]
            batch = graph.prepare(pack([*beside[:place], sequence, *beside[place:]]))
            if seed == 3:
                batch = _with_other_padding(batch)
            try:
                results.append(_result(graph.run(batch, hidden=True), batch, place))
            except Exception as error:  # noqa: BLE001 - ONNX Runtime raises many types, and outputs may have other sizes
                return f"fails ({one_line(error)})"
        measured = difference(normalize_outputs(reference.config, results[0]), expected)
        if broken := violation(measured, PRECISION_FP32):
            return f"differs from the module: {broken}"
        if _bytes(results[0]) != _bytes(results[-1]):
            return "has other bits when these change"
    return ""


def _sequences_to_compare(reference: Reference) -> Iterator[tuple[Sequence, GraphOutputs]]:
    """Return the first short sequences, some more of them, and one of about half the length of the longest batches."""
    few, half = _few_tokens(reference.config), min(reference.config.max_tokens, SHORT_TOKENS) // 2
    short = reference.only(lambda tokens: tokens <= few)
    more = short.short_sequences()
    yield from zip(short.sequences[:EDGE_SEQUENCES], short.outputs[:EDGE_SEQUENCES], strict=True)
    yield from zip(more.sequences, more.outputs, strict=True)
    longer = reference.only(lambda tokens: few < tokens <= SHORT_TOKENS)
    pairs = zip(longer.sequences, longer.outputs, strict=True)
    yield from sorted(pairs, key=lambda pair: abs(len(pair[0]) - half))[:1]


def _few_tokens(config: EncoderConfig) -> int:
    return max(config.min_tokens, min(config.max_tokens, _FEW_TOKENS))


def _with_other_padding(batch: PackedBatch) -> PackedBatch:
    """Return a prepared batch in which padding repeats the first row of its sequence instead of the last one."""
    assert batch.inputs is not None
    inputs: dict[str, NDArray[Any]] = dict(batch.inputs)
    if "attention_mask" not in inputs:
        return batch
    is_token = inputs["attention_mask"] > 0
    for name in inputs.keys() - {"attention_mask"}:
        shape = (*is_token.shape, *(1 for _ in inputs[name].shape[2:]))
        inputs[name] = np.where(is_token.reshape(shape), inputs[name], inputs[name][:, :1])
    return replace(batch, inputs=inputs)


def _result(outputs: GraphOutputs, batch: PackedBatch, place: int) -> GraphOutputs:
    """Return the outputs of one sequence of a batch."""
    return GraphOutputs(
        None if outputs.pooled is None else outputs.pooled[place : place + 1],
        None if outputs.hidden is None else batch.split(outputs.hidden)[place],
        None if outputs.logits is None else [outputs.logits[place]],
    )


def _bytes(outputs: GraphOutputs) -> list[bytes]:
    arrays = [outputs.pooled, outputs.hidden, *(outputs.logits or ())]
    return [array.tobytes() for array in arrays if array is not None]


def check_float16(path: Path) -> None:
    """Check that no operator of a padded graph in fp16 mixes precisions, which PyTorch traces all the same.

    Raises:
        NotPackableError: ONNX Runtime cannot load the graph.
    """
    options = session_options(1)
    # ONNX Runtime checks precisions first. Its optimizations would take time, and memory for weights in float32.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        open_session(path, "cpu", options)
    except Exception as error:
        raise NotPackableError("", f"ONNX Runtime cannot load the graph ({one_line(error)})") from error


def largest_arrays(path: Path, sequences: tuple[Sequence, Sequence]) -> tuple[int, int]:
    """Return the largest number of values of an array of a padded graph, per token and per pair of tokens.

    An array of a·n + b·n² values for n tokens has a values per token and b per pair. The second sequence has twice the
    length of the first, or the same length: then b is 0.
    """
    model = onnx.load(path, load_external_data=False)
    produced = {name for node in model.graph.node for name in node.output if name}
    model.graph.output.extend(
        onnx.ValueInfoProto(name=name) for name in sorted(produced - {each.name for each in model.graph.output})
    )
    measured = path.with_suffix(".measured")
    measured.write_bytes(model.SerializeToString())
    try:
        options = session_options(1)
        session = open_session(measured, "cpu", options)
        names = [each.name for each in session.get_inputs()]
        shorter, longer = ([array.size for array in session.run(None, pack([each]).feeds(names))] for each in sequences)
    finally:
        measured.unlink()
    n = len(sequences[0])
    per_token, per_pair = 1, 0
    for one, two in zip(shorter, longer, strict=True):
        pairs = max(0, two - len(sequences[1]) // n * one) / (2 * n * n)
        per_token = max(per_token, round(one / n - pairs * n))
        per_pair = max(per_pair, round(pairs))
    return per_token, per_pair
