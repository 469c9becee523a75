"""Writes a bundle: graphs that were checked against PyTorch, and what a server needs to check them again."""

import copy
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from google.protobuf import json_format
from google.protobuf.message import Message

from headwaiter_export.attention_layout import Attending, PackedCpu, Portable
from headwaiter_export.attention_layout_cuda import PackedCuda
from headwaiter_export.config import EncoderConfig, Pooling, TextConfig
from headwaiter_export.encoder import Encoder
from headwaiter_export.graphs import WeightsFile, Written, trace
from headwaiter_export.neighbours import PROMISED_SHARE, SENTENCES, same_nearest_neighbour, token_ids
from headwaiter_export.parity import Reference, Sequence, draw_sequences, join, measure, measure_attention
from headwaiter_export.quantization import quantize
from headwaiter_proto.encoder_pb2 import PRECISION_FP16, PRECISION_FP32, PRECISION_INT8, Precision
from headwaiter_proto.manifest_pb2 import (
    LOWERING_ATTEND,
    LOWERING_PACKED_CPU,
    LOWERING_PACKED_CUDA,
    LOWERING_PORTABLE,
    File,
    Graph,
    Lowering,
    Manifest,
    Parity,
)
from headwaiter_server.runtime.bundle import GOLDEN, MANIFEST, PARITY, SCHEMA_VERSION, TOKENIZER, sha256_of
from headwaiter_server.runtime.errors import ProviderUnavailable
from headwaiter_server.runtime.graph import Provider
from headwaiter_server.runtime.packing import pack
from headwaiter_server.runtime.tolerance import violation

# Takes a line for each thing done.
Report = Callable[[str], object]


class BundleError(Exception):
    """A bundle cannot be written."""


@dataclass(frozen=True)
class GraphPlan:
    """One graph of a bundle: how it is written, and where it can run."""

    file: str
    lowering: type[Written]
    kind: Lowering
    precision: Precision
    provider: Provider


GRAPHS = (
    GraphPlan("packed-cpu.fp32.onnx", PackedCpu, LOWERING_PACKED_CPU, PRECISION_FP32, "cpu"),
    GraphPlan("packed-cuda.fp32.onnx", PackedCuda, LOWERING_PACKED_CUDA, PRECISION_FP32, "cuda"),
    GraphPlan("portable.fp32.onnx", Portable, LOWERING_PORTABLE, PRECISION_FP32, "cpu"),
    GraphPlan("packed-cuda.fp16.onnx", PackedCuda, LOWERING_PACKED_CUDA, PRECISION_FP16, "cuda"),
    GraphPlan("packed-cpu.int8.onnx", PackedCpu, LOWERING_PACKED_CPU, PRECISION_INT8, "cpu"),
)
# Written after the others, whose bytes are the same without it.
ATTEND = GraphPlan("attend.fp32.onnx", Attending, LOWERING_ATTEND, PRECISION_FP32, "cpu")
# How far attention weights, and contexts in units of their scale, may be from PyTorch's.
_ATTENTION_MAX_ABS = 1e-5
# A name goes into replies, labels of metrics and lines of a log.
_NAME_CHARACTERS = 128
WEIGHTS = {PRECISION_FP32: "weights.fp32.bin", PRECISION_FP16: "weights.fp16.bin", PRECISION_INT8: "weights.int8.bin"}


def export_bundle(
    encoder: Encoder,
    text: TextConfig | None,
    destination: Path,
    name: str,
    report: Report = lambda line: None,
    plans: Collection[GraphPlan] | None = None,
) -> None:
    """Write a bundle that appears at `destination` whole or not at all.

    Args:
        encoder: the model, in float32.
        text: how it takes texts, if it does.
        destination: where the bundle shall be; nothing, or an empty folder, may be there.
        name: the model's name, which is in every reply: at most 128 printable characters.
        report: takes a line for each thing done.
        plans: the graphs it shall hold, beside the one of attention weights; all that any server runs when None.

    Raises:
        BundleError: the name is wrong, the destination is taken, or a graph answers otherwise than PyTorch.
    """
    _check_name(name)
    plans = GRAPHS if plans is None else plans
    with _appearing_whole(destination) as folder:
        reference = Reference.of(encoder)
        sentences = [] if text is None else token_ids(text, encoder.config.min_tokens)
        precisions = {plan.precision for plan in plans}
        calibration = sentences[SENTENCES:] or reference.sequences
        models, float32_layers = _in_precisions(precisions, encoder.folded(), reference, calibration, report)
        _write_graphs(models, plans, folder, report)
        parity = _measure_graphs(plans, folder, reference, report)
        if PRECISION_INT8 in precisions and len(sentences) > 1 and encoder.config.pooling is not Pooling.NONE:
            _measure_neighbours(parity, folder, sentences[:SENTENCES], report)
        _write_json(parity, folder / PARITY)
        _check_attention(folder / ATTEND.file, encoder, reference, report)
        _write_golden(reference, folder / GOLDEN)
        if text is not None:
            (folder / TOKENIZER).write_text(text.tokenizer, encoding="utf-8")
        _write_json(_describe(encoder.config, text, name, plans, float32_layers, folder), folder / MANIFEST)


def _check_name(name: str) -> None:
    if not name.strip() or not name.isprintable() or len(name) > _NAME_CHARACTERS:
        raise BundleError(
            f"the model's name is {name!r}: it must be 1 to {_NAME_CHARACTERS} printable characters, not spaces alone"
        )


@contextmanager
def _appearing_whole(destination: Path) -> Iterator[Path]:
    """Give a folder to write in, which becomes the destination at the end, or goes if anything fails."""
    if destination.exists() and not (destination.is_dir() and not any(destination.iterdir())):
        raise BundleError(f"{destination} exists already: remove it, or choose another place for the bundle")
    destination.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{destination.name}-", dir=destination.parent))
    try:
        yield folder
        # mkdtemp lets nobody else read; the server may be another user.
        folder.chmod(0o755)
        folder.rename(destination)
    except BaseException:
        shutil.rmtree(folder)
        raise


def _in_precisions(
    precisions: Collection[Precision],
    folded: Encoder,
    reference: Reference,
    calibration: list[Sequence],
    report: Report,
) -> tuple[dict[Precision, Encoder], list[str]]:
    """Return the encoder in float32 and in the precisions asked for, and the layers that int8 leaves in float32."""
    models, float32_layers = {PRECISION_FP32: folded}, list[str]()
    if PRECISION_FP16 in precisions:
        models[PRECISION_FP16] = halve(folded)
    if PRECISION_INT8 in precisions:
        models[PRECISION_INT8], float32_layers = quantize(folded, reference, calibration)
        report(f"int8: linear layers of the blocks that stay in float32: {', '.join(float32_layers) or 'none'}")
    return models, float32_layers


def _write_graphs(
    models: Mapping[Precision, Encoder], plans: Collection[GraphPlan], folder: Path, report: Report
) -> None:
    example = pack(draw_sequences(models[PRECISION_FP32].config, (3, 2)))
    for precision, model in models.items():
        weights = WEIGHTS[precision]
        with WeightsFile(folder / weights) as shared:
            for plan in (*plans, ATTEND):
                if plan.precision == precision:
                    shared.write_graph(trace(model, plan.lowering, example), folder / plan.file)
        report(f"{weights}: {(folder / weights).stat().st_size / 1e6:.1f} MB")


def halve(encoder: Encoder) -> Encoder:
    """Return the encoder in half precision.

    Raises:
        BundleError: naming a weight that float16 cannot hold.
    """
    half = copy.deepcopy(encoder).half()
    for name, weight in half.state_dict().items():
        if not weight.isfinite().all():
            raise BundleError(f"{name} has values that float16 cannot hold: it ends at 65504")
    return half


def _measure_graphs(plans: Collection[GraphPlan], folder: Path, reference: Reference, report: Report) -> Parity:
    """Measure the graphs that run on this machine.

    Raises:
        BundleError: naming the graph that is out of tolerance, its difference and the limit.
    """
    parity = Parity()
    for plan in plans:
        try:
            measured = measure(folder / plan.file, plan.provider, reference)
        except ProviderUnavailable:
            report(f"{plan.file}: not measured, there is no {plan.provider.upper()} here")
            continue
        if broken := violation(measured, plan.precision):
            raise BundleError(f"{plan.file} is out of tolerance: {broken}")
        parity.graphs.add(
            graph=plan.file,
            provider=plan.provider,
            precision=plan.precision,
            sequences=len(reference.sequences),
            **asdict(measured),
        )
        pooled = "" if reference.config.pooling is Pooling.NONE else f"{measured.pooled_max_abs:.1e} pooled, "
        report(
            f"{plan.file}: differs from PyTorch by {pooled}{measured.hidden_max_abs:.1e} hidden, "
            f"cosine at least {measured.min_cosine:.7f}"
        )
    return parity


def _check_attention(path: Path, encoder: Encoder, reference: Reference, report: Report) -> bool:
    """Keep the graph of attention weights if it is near PyTorch; large scores can take it far where Encode is not."""
    measured = measure_attention(path, encoder, reference)
    report(f"{path.name}: attention differs from PyTorch by {measured:.1e}")
    # A difference that is no number is not within tolerance either.
    if measured <= _ATTENTION_MAX_ABS:
        return True
    report(f"{path.name} is left out, as that is over {_ATTENTION_MAX_ABS:g}: the bundle does not offer Attend")
    path.unlink()
    return False


def _measure_neighbours(parity: Parity, folder: Path, sequences: list[Sequence], report: Report) -> None:
    """Add to the int8 graph's figures how often it finds the nearest neighbour that float32 finds."""
    (float32,) = (each for each in GRAPHS if (each.kind, each.precision) == (LOWERING_PACKED_CPU, PRECISION_FP32))
    (int8,) = (each for each in parity.graphs if each.precision == PRECISION_INT8)
    share = same_nearest_neighbour(folder / float32.file, folder / int8.graph, sequences)
    int8.same_nearest_neighbour = share
    warning = "" if share >= PROMISED_SHARE else f", under the {PROMISED_SHARE:.0%} promised of trained models"
    report(f"{int8.graph}: {share:.1%} of {len(sequences)} sentences keep their nearest neighbour{warning}")


def _write_golden(reference: Reference, path: Path) -> None:
    answers = join(reference.answers)
    arrays: dict[str, Any] = {
        reference.config.token_input: np.concatenate(reference.sequences),
        "lengths": np.array([len(sequence) for sequence in reference.sequences], np.int32),
        "hidden": answers.hidden,
    }
    if answers.pooled is not None:
        arrays["pooled"] = answers.pooled
    np.savez(path, **arrays)


def _describe(
    config: EncoderConfig,
    text: TextConfig | None,
    name: str,
    plans: Collection[GraphPlan],
    float32_layers: list[str],
    folder: Path,
) -> Manifest:
    return Manifest(
        schema_version=SCHEMA_VERSION,
        name=name,
        vocabulary_size=config.vocabulary_size,
        feature_width=config.feature_width,
        min_tokens=config.min_tokens,
        max_tokens=config.max_tokens,
        max_text_tokens=text.max_tokens if text else 0,
        prompts=[asdict(prompt) for prompt in text.prompts] if text else (),
        default_prompt=text.default_prompt if text else "",
        pooling_skips_prompt=text is not None and text.pooling_skips_prompt,
        width=config.width,
        layers=config.layers,
        heads=config.heads,
        pooling=f"POOLING_{config.pooling.name}",
        normalized=config.normalize,
        graphs=[_graph(plan, float32_layers if plan.precision == PRECISION_INT8 else ()) for plan in plans],
        attend=_graph(ATTEND) if (folder / ATTEND.file).is_file() else None,
        files=[
            File(name=path.name, size_bytes=path.stat().st_size, sha256=sha256_of(path))
            for path in sorted(folder.iterdir())
        ],
        versions={
            "torch": torch.__version__,
            "onnx": onnx.__version__,
            "onnxruntime": onnxruntime.__version__,
            "headwaiter": version("headwaiter"),
        },
    )


def _graph(plan: GraphPlan, float32_layers: Iterable[str] = ()) -> Graph:
    return Graph(
        file=plan.file,
        lowering=plan.kind,
        precision=plan.precision,
        weights_file=WEIGHTS[plan.precision],
        float32_layers=float32_layers,
    )


def _write_json(message: Message, path: Path) -> None:
    # Sorted, as a map has no order of its own and the manifest's digest must not change from one export to the next.
    path.write_text(json_format.MessageToJson(message, sort_keys=True) + "\n", encoding="utf-8")
