"""Compares results with PyTorch in float32 on the same device, one sequence at a time."""

import copy
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray

from bench.findings import Findings
from bench.gpu.documents import NUMERICS, table_lines
from bench.gpu.models import full_size_models, served_plan, write
from bench.gpu.routes import find_routes, packed_attention, printed_kernels
from bench.gpu.settings import PRECISIONS, Precision, Settings
from bench.studies.numerics import figures
from headwaiter_export.bundle.verification import measure_graph
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.encoder.attention_layout import SingleSequence
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_export.encoder.reference import (
    Reference,
    clear_sequences,
    concatenate,
    normalize_outputs,
    random_sequences,
    run_in_pytorch,
)
from headwaiter_server.runtime.graph import EncoderGraph, GraphOutputs
from headwaiter_server.runtime.numeric_tolerances import difference, violation
from headwaiter_server.runtime.packing import pack

Rows = NDArray[np.generic]

# Lengths around powers of two, where kernels split work into tiles, and a multiple of 8 that is not one of 16.
_EDGES = tuple(sorted({1, 2, 3, 200} | {2**power + off for power in range(2, 13) for off in (-1, 0, 1)}))
# Every length up to this one is checked; of longer ones, only edge lengths and random lengths.
_EVERY_LENGTH = 512


class WrongAnswers(Exception):
    """A graph's outputs differ too much from PyTorch's."""


def correctness(settings: Settings, findings: Findings) -> None:
    """Check the models with all their layers in every precision."""
    for name, encoder in full_size_models(settings):
        with findings.attempt(name), TemporaryDirectory(dir=settings.folder) as folder:

            def write_graph(precision: Precision, encoder: Encoder = encoder, folder: str = folder) -> Path:
                return write(encoder, served_plan(precision).layout, precision, Path(folder) / f"{precision}.onnx")

            check_model(name, encoder, settings.effort.ragged_tokens, write_graph, settings, findings)


def check_model(
    name: str,
    encoder: Encoder,
    ragged_tokens: int,
    write_graph: Callable[[Precision], Path],
    settings: Settings,
    findings: Findings,
) -> None:
    """Check a model in every precision: its outputs, the independence of its sequences, and its attention kernels."""
    config = encoder.config
    lengths = batches_of_lengths(config, ragged_tokens)
    batches = [clear_sequences(encoder, each) for each in lengths]
    expected = pytorch_outputs(encoder, [sequence for batch in batches for sequence in batch], settings)
    for precision in PRECISIONS:
        label = f"{name}, {precision}"
        with findings.attempt(label), printed_kernels() as printed:
            path = write_graph(precision)
            graph = EncoderGraph.open(path, "cuda", attention=packed_attention(config, precision))
            actual = [normalize_outputs(config, graph.run(pack(batch), hidden=True)) for batch in batches]
            _compare(label, config, precision, batches, actual, expected, findings)
            changed = values_changed_by_neighbours(graph, config)
            findings.require(f"{label}: values changed by other sequences", changed, "≤", 0)
            row = f"| {name} | {served_plan(precision).file.removesuffix('.onnx')} | cuda |"
            if any(line.startswith(row) for line in table_lines(NUMERICS)):
                # Use the sequences of the export, as `make numerics` does.
                reference = Reference.compute(encoder).with_long_sequences(encoder)
                findings.record(row, figures(measure_graph(path, "cuda", reference)))
            find_routes(label, graph, printed, config, precision, findings)


def check_answers(graph: EncoderGraph, encoder: Encoder, sequences: Sequence[Rows], precision: Precision) -> None:
    """Compare a graph's outputs for one batch with those of the float32 encoder on the CPU.

    Raises:
        WrongAnswers: the outputs miss the tolerance of the precision.
    """
    actual = normalize_outputs(encoder.config, graph.run(pack(sequences), hidden=True))
    measured = difference(actual, concatenate(run_in_pytorch(encoder, list(sequences))))
    if problem := violation(measured, served_plan(precision).precision):
        raise WrongAnswers(problem)


def batches_of_lengths(config: EncoderConfig, ragged_tokens: int) -> list[list[int]]:
    """Return the lengths of the batches that check a model.

    The batches are: each edge length alone, all edge lengths together, and two batches of about `ragged_tokens` tokens
    with the odd and the even lengths up to 512. Lengths are repeated or skipped to reach that size. A model that
    accepts longer sequences also gets a batch of lengths up to its maximum, which is an edge length.
    """
    shortest, longest = config.min_tokens, config.max_tokens
    edges = sorted({n for n in _EDGES if shortest <= n <= longest} | {longest})
    every = range(shortest, min(longest, _EVERY_LENGTH) + 1)
    step = max(1, round(sum(every) / (2 * ragged_tokens)))
    halves = [every[:: 2 * step], every[step :: 2 * step]]
    batches = [[n] for n in edges] + [edges] + [[*half] * max(1, ragged_tokens // sum(half)) for half in halves]
    if longest > _EVERY_LENGTH:
        batches.append(list(_ragged(_EVERY_LENGTH, longest, ragged_tokens)))
    return batches


def _ragged(shortest: int, longest: int, tokens: int) -> Iterator[int]:
    """Yield the longest length, then random lengths, short ones more often; their sum is at most `tokens`."""
    rng = np.random.default_rng(0)
    length = longest
    while tokens >= length:
        yield length
        tokens -= length
        length = int(np.exp(rng.uniform(np.log(shortest), np.log(longest))))


@torch.inference_mode()
def pytorch_outputs(
    encoder: Encoder,
    sequences: Sequence[Rows],
    settings: Settings,
    layout: Callable[[int], SingleSequence] = SingleSequence,
) -> list[GraphOutputs]:
    """Run each sequence alone through an encoder in PyTorch, in float32 without TF32."""
    torch.set_float32_matmul_precision("highest")
    device = settings.gpu.device
    encoder = copy.deepcopy(encoder).to(device)
    results = []
    with torch.device(device):
        for sequence in sequences:
            tokens = torch.from_numpy(sequence).to(device)
            pooled, hidden, _ = encoder(tokens, layout(len(sequence)))
            results.append(normalize_outputs(encoder.config, GraphOutputs(pooled.cpu().numpy(), hidden.cpu().numpy())))
    return results


def _compare(
    name: str,
    config: EncoderConfig,
    precision: str,
    batches: Sequence[Sequence[Rows]],
    actual: Sequence[GraphOutputs],
    expected: Sequence[GraphOutputs],
    findings: Findings,
) -> None:
    """Compare the outputs of each batch with PyTorch's outputs of each sequence."""
    measured = difference(concatenate(list(actual)), concatenate(list(expected)))
    hidden = [rows for batch, outputs in zip(batches, actual, strict=True) for rows in _split(batch, outputs)]
    errors = [hidden_relative_error(rows, each.hidden) for rows, each in zip(hidden, expected, strict=True)]
    # Unlike max(), numpy's maximum is NaN if any value is.
    relative = float(np.max(errors))
    if precision == "fp32":
        pooled = min(measured.pooled_max_abs, measured.pooled_max_relative)
        findings.require(f"{name}: pooled, largest difference", pooled, "≤", 1e-5)
        hidden_difference = min(measured.hidden_max_abs, measured.hidden_max_relative)
        findings.require(f"{name}: hidden, largest difference", hidden_difference, "≤", 1e-4)
        findings.require(f"{name}: pooled, smallest cosine", measured.min_cosine, "≥", 0.99999)
        findings.require(f"{name}: hidden, smallest cosine", measured.hidden_min_cosine, "≥", 0.99999)
        findings.record(f"{name}: hidden, relative error", relative)
    elif config.chooses_experts:
        # Rounding to float16 changes the choices of some tokens.
        findings.record(f"{name}: pooled, smallest cosine", measured.min_cosine)
        findings.record(f"{name}: hidden, relative error", relative)
    else:
        findings.require(f"{name}: pooled, smallest cosine", measured.min_cosine, "≥", 0.9999)
        findings.require(f"{name}: hidden, relative error", relative, "≤", 5e-3)


def _split(batch: Sequence[Rows], outputs: GraphOutputs) -> list[Rows]:
    assert outputs.hidden is not None
    return pack(batch).split(outputs.hidden)


def hidden_relative_error(actual: Rows, expected: Rows | None) -> float:
    """Return ‖actual − expected‖ / ‖expected‖ of a sequence's hidden rows [n, width], in the Frobenius norm."""
    assert expected is not None
    exact, reference = actual.astype(np.float64), expected.astype(np.float64)
    return float(np.linalg.norm(exact - reference) / np.linalg.norm(reference))


def values_changed_by_neighbours(graph: EncoderGraph, config: EncoderConfig) -> int:
    """Count the values of one sequence's results whose bits change when the other sequences change.

    Lengths stay the same. The changed sequences are zeros, and for features also NaN and infinity.
    """
    lengths = [min(n, config.max_tokens) for n in (33, 57, 200, 9)]
    sequences, index = random_sequences(config, lengths), 1
    before = _result_bits(graph, sequences, index)
    changed = 0
    for content in (0.0, np.nan, np.inf) if not config.takes_tokens else (0,):
        others = [each if i == index else np.full_like(each, content) for i, each in enumerate(sequences)]
        after = _result_bits(graph, others, index)
        changed += sum(int((old != new).sum()) for old, new in zip(before, after, strict=True))
    return changed


def _result_bits(graph: EncoderGraph, sequences: Sequence[Rows], index: int) -> list[NDArray[np.unsignedinteger]]:
    batch = pack(sequences)
    outputs = graph.run(batch, hidden=True)
    assert outputs.pooled is not None
    assert outputs.hidden is not None
    values = np.ascontiguousarray(outputs.pooled[index]), np.ascontiguousarray(batch.split(outputs.hidden)[index])
    return [each.view(f"u{each.itemsize}") for each in values]
