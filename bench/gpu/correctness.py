"""Whether answers are PyTorch's, which runs in float32 on the same device, one sequence at a time."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench.gpu.findings import Findings
from bench.gpu.models import every_model, served_plan, write
from bench.gpu.setting import Setting
from headwaiter_export.attention_layout import SingleSequence
from headwaiter_export.config import EncoderConfig
from headwaiter_export.encoder import Encoder
from headwaiter_export.parity import draw_sequences, join
from headwaiter_server.runtime.graph import EncoderGraph, Outputs
from headwaiter_server.runtime.packing import pack
from headwaiter_server.runtime.tolerance import difference, normalize_pooled

Rows = NDArray[np.generic]

# Lengths about which kernels cut their work into tiles.
_EDGES = tuple(sorted({1, 2, 3} | {2**power + off for power in range(2, 13) for off in (-1, 0, 1)}))
# Up to here a model is checked at every length it takes; beyond, at edges and at lengths drawn between them.
_EVERY_LENGTH = 512


def correctness(setting: Setting, findings: Findings) -> None:
    """Check every model at every precision."""
    for name, encoder in every_model(setting):
        with findings.attempt(name):
            _check(name, encoder, setting, findings)


def _check(name: str, encoder: Encoder, setting: Setting, findings: Findings) -> None:
    config = encoder.config
    paths = {}
    for precision in setting.precisions:
        path = setting.folder / f"{name.split(',')[0].replace(' ', '-')}.{precision}.onnx"
        paths[precision] = write(encoder, served_plan(setting, precision).lowering, precision, path)
    batches = [draw_sequences(config, lengths) for lengths in batches_of_lengths(config, setting.effort.ragged_tokens)]
    expected = [join(pytorch_answers(encoder, batch, setting)) for batch in batches]
    for precision, path in paths.items():
        with findings.attempt(f"{name}, {precision}"):
            graph = EncoderGraph.open(path, setting.provider)
            actual = [_run(graph, batch, config) for batch in batches]
            _compare(f"{name}, {precision}", precision, batches, actual, expected, findings)
            changed = values_changed_by_neighbours(graph, config)
            findings.hold(f"{name}, {precision}: values that other neighbours change", changed, "≤", 0)
    # The graphs of the larger shapes have gigabytes together.
    for path in paths.values():
        path.unlink()
        path.with_suffix(".bin").unlink()


def batches_of_lengths(config: EncoderConfig, ragged_tokens: int) -> list[list[int]]:
    """Return the lengths of the batches that a model is checked on.

    Each edge alone, all edges together, and every length up to 512 in two ragged batches of 65,536 tokens and more: the
    odd lengths, and the even ones. Lengths are repeated where that is less than what is asked for, and passed over
    where it is more. A model of more tokens also has a ragged batch with lengths up to its maximum.
    """
    shortest, longest = config.min_tokens, config.max_tokens
    edges = [n for n in _EDGES if shortest <= n <= longest]
    every = range(shortest, min(longest, _EVERY_LENGTH) + 1)
    step = max(1, round(sum(every) / (2 * ragged_tokens)))
    halves = [every[:: 2 * step], every[step :: 2 * step]]
    batches = [[n] for n in edges] + [edges] + [[*half] * max(1, ragged_tokens // sum(half)) for half in halves]
    if longest > _EVERY_LENGTH:
        batches.append(list(_ragged(_EVERY_LENGTH, longest, ragged_tokens)))
    return batches


def _ragged(shortest: int, longest: int, tokens: int) -> Iterator[int]:
    """Yield lengths, short ones more often, that fill so many tokens; the first is the longest."""
    rng = np.random.default_rng(0)
    length = longest
    while tokens >= length:
        yield length
        tokens -= length
        length = int(np.exp(rng.uniform(np.log(shortest), np.log(longest))))


@torch.inference_mode()
def pytorch_answers(encoder: Encoder, sequences: Sequence[Rows], setting: Setting) -> list[Outputs]:
    """Run an encoder in float32, without TF32, over each sequence alone, where the setting has PyTorch run."""
    torch.set_float32_matmul_precision("highest")
    encoder = encoder.to(setting.device)
    answers = []
    # The plain form of attention, as fused ones may have arithmetic of their own.
    with torch.device(setting.device), sdpa_kernel(SDPBackend.MATH):
        for sequence in sequences:
            tokens = torch.from_numpy(sequence).to(setting.device)
            pooled, hidden = encoder(tokens, SingleSequence(len(sequence)))
            answers.append(_finish(encoder.config, Outputs(pooled.cpu().numpy(), hidden.cpu().numpy())))
    return answers


def _run(graph: EncoderGraph, batch: Sequence[Rows], config: EncoderConfig) -> Outputs:
    return _finish(config, graph.run(pack(batch), hidden=True))


def _finish(config: EncoderConfig, outputs: Outputs) -> Outputs:
    assert outputs.pooled is not None
    return Outputs(normalize_pooled(outputs.pooled, normalized=config.normalize), outputs.hidden)


def _compare(
    name: str,
    precision: str,
    batches: Sequence[Sequence[Rows]],
    actual: Sequence[Outputs],
    expected: Sequence[Outputs],
    findings: Findings,
) -> None:
    measured = difference(join(list(actual)), join(list(expected)))
    # numpy's maximum, which is NaN where any of them is.
    relative = np.max(
        [
            hidden_relative_error(mine, theirs)
            for batch, ours, pytorchs in zip(batches, actual, expected, strict=True)
            for mine, theirs in zip(_split(batch, ours), _split(batch, pytorchs), strict=True)
        ]
    ).item()
    if precision == "fp32":
        pooled = min(measured.pooled_max_abs, measured.pooled_max_relative)
        findings.hold(f"{name}: pooled, largest difference", pooled, "≤", 1e-5)
        hidden = min(measured.hidden_max_abs, measured.hidden_max_relative)
        findings.hold(f"{name}: hidden, largest difference", hidden, "≤", 1e-4)
        findings.see(f"{name}: hidden, relative error", relative)
    else:
        findings.hold(f"{name}: pooled, smallest cosine", measured.min_cosine, "≥", 0.9999)
        findings.hold(f"{name}: hidden, relative error", relative, "≤", 5e-3)


def _split(batch: Sequence[Rows], outputs: Outputs) -> list[Rows]:
    assert outputs.hidden is not None
    return pack(batch).split(outputs.hidden)


def hidden_relative_error(actual: Rows, expected: Rows) -> float:
    """Return ‖actual − expected‖ / ‖expected‖ of a sequence's hidden rows [n, width], in the Frobenius norm."""
    exact, reference = actual.astype(np.float64), expected.astype(np.float64)
    return float(np.linalg.norm(exact - reference) / np.linalg.norm(reference))


def values_changed_by_neighbours(graph: EncoderGraph, config: EncoderConfig) -> int:
    """Count the values of one sequence's answers that are other bits where its neighbours are others, of equal lengths.

    Neighbours of features are also made of NaN and infinity.
    """
    lengths = [min(n, config.max_tokens) for n in (33, 57, 200, 9)]
    alike, place = draw_sequences(config, lengths), 1
    first = _answer_of(graph, alike, place)
    changed = 0
    for content in (0.0, np.nan, np.inf) if not config.takes_tokens else (0,):
        others = [sequence if i == place else np.full_like(sequence, content) for i, sequence in enumerate(alike)]
        again = _answer_of(graph, others, place)
        changed += sum(int((mine != theirs).sum()) for mine, theirs in zip(first, again, strict=True))
    return changed


def _answer_of(graph: EncoderGraph, sequences: Sequence[Rows], place: int) -> list[NDArray[np.unsignedinteger]]:
    """Return the bits of one sequence's answers."""
    batch = pack(sequences)
    outputs = graph.run(batch, hidden=True)
    assert outputs.pooled is not None
    assert outputs.hidden is not None
    values = np.ascontiguousarray(outputs.pooled[place]), np.ascontiguousarray(batch.split(outputs.hidden)[place])
    return [each.view(f"u{each.itemsize}") for each in values]
