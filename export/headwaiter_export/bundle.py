"""Write a bundle: graphs checked against PyTorch, and golden inputs with which a server checks the graphs again.

`export_bundle` shows the order of the steps; every export command ends with it.
"""

import copy
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from google.protobuf import json_format
from google.protobuf.message import Message
from numpy.typing import NDArray

from headwaiter_export.activation_ranges import ActivationRanges
from headwaiter_export.attention_layout_cuda import PackedCudaSeparateNorms, bias_heads
from headwaiter_export.choices import Pooling
from headwaiter_export.config import EncoderConfig
from headwaiter_export.encoder import Encoder
from headwaiter_export.graph_plans import (
    ATTENTION_WEIGHTS_GRAPH,
    GRAPHS,
    WEIGHTS_FILES,
    GraphPlan,
    limiting_magnitude,
    suitable_plans,
)
from headwaiter_export.graphs import WeightsFile, trace
from headwaiter_export.head_config import HeadConfig
from headwaiter_export.parity import SHORT_TOKENS, Reference, concatenate
from headwaiter_export.quantization import quantize
from headwaiter_export.sentences import SENTENCES, TokenizedSentences, tokenize
from headwaiter_export.skip_layer_norm import can_fuse_norms
from headwaiter_export.text_config import TextConfig
from headwaiter_export.verification import (
    BundleError,
    Report,
    check_attention_weights,
    check_graphs,
    measure_neighbours,
)
from headwaiter_proto.encoder_pb2 import PRECISION_FP16, PRECISION_FP32, PRECISION_INT8, Head, ImageFormat, Precision
from headwaiter_proto.manifest_pb2 import File, Graph, Magnitude, Manifest
from headwaiter_server.runtime.bundle import GOLDEN, MANIFEST, PARITY, SCHEMA_VERSIONS, TOKENIZER, sha256_of
from headwaiter_server.runtime.numeric_tolerances import FLOAT16_MAX
from headwaiter_server.runtime.packing import pack

__all__ = ["BundleError", "export_bundle"]

# The name appears in replies, metric labels and log lines.
_MAX_NAME_CHARACTERS = 128
# Hidden rows of a sequence of more than 1,024 tokens in the golden inputs. All rows of 8,192 tokens would take 25 MB.
_LONG_HIDDEN_ROWS = 512


def export_bundle(
    encoder: Encoder,
    text: TextConfig | None,
    destination: Path,
    name: str,
    report: Report = lambda line: None,
    plans: Collection[GraphPlan] | None = None,
    image: ImageFormat | None = None,
) -> None:
    """Write a complete bundle to `destination`; after an error, write nothing.

    Args:
        encoder: the encoder in float32.
        text: tokenizer, limit and prompts; None if the model accepts no texts.
        destination: folder of the bundle; it must be missing or empty.
        name: name of the model in requests and replies, 1 to 128 printable characters.
        report: called with a line of text after each step.
        plans: graphs to write, without the graph of attention weights, which is always written; None for all.
        image: the images that the model takes; None if the model takes no images.

    Raises:
        BundleError: the name is wrong, the destination is not empty, a graph is out of tolerance, or all plans are in
            fp16 and the model's numbers exceed its range.
    """
    _check_name(name)
    with _atomic_folder(destination) as folder:
        ranges = ActivationRanges(encoder)
        with ranges.watch():
            reference = Reference.compute(encoder, ranges.sequence)
        plans = _suitable_plans(GRAPHS if plans is None else plans, ranges, report)
        sentences = TokenizedSentences([], []) if text is None else tokenize(text, encoder.config.min_tokens)
        precisions = {plan.precision for plan in plans}
        encoders, float32_layers = _encoders_by_precision(
            precisions, encoder.fold_temperatures().merge_dense(), reference, sentences, report
        )
        _write_graphs(encoders, plans, folder, report)
        checked = reference.with_long_sequences(encoder)
        parity = check_graphs(plans, folder, checked, report)
        parity.sentences = SENTENCES if sentences.calibration else ""
        if PRECISION_INT8 in precisions and len(sentences.measured) > 1 and encoder.config.pooling is not Pooling.NONE:
            measure_neighbours(parity, folder, sentences.measured, report)
        _write_json(parity, folder / PARITY)
        check_attention_weights(folder / ATTENTION_WEIGHTS_GRAPH.file, encoder, reference, report)
        _write_golden(checked.golden(), folder / GOLDEN)
        if text is not None:
            (folder / TOKENIZER).write_text(text.tokenizer, encoding="utf-8")
        manifest = _manifest(encoder.config, text, name, plans, float32_layers, ranges, folder)
        if image is not None:
            manifest.image.CopyFrom(image)
        _write_json(manifest, folder / MANIFEST)


def _check_name(name: str) -> None:
    if not name.strip() or not name.isprintable() or len(name) > _MAX_NAME_CHARACTERS:
        raise BundleError(
            f"the model's name is {name!r}: give 1 to {_MAX_NAME_CHARACTERS} printable characters, not only spaces"
        )


@contextmanager
def _atomic_folder(destination: Path) -> Iterator[Path]:
    """Yield a temporary folder, then rename it to the destination; after an error, delete it."""
    if destination.exists() and not (destination.is_dir() and not any(destination.iterdir())):
        raise BundleError(f"{destination} already exists: remove it, or choose another folder for the bundle")
    destination.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{destination.name}-", dir=destination.parent))
    try:
        yield folder
        # mkdtemp lets no other user read its folder, but the server may run as another user.
        folder.chmod(0o755)
        folder.rename(destination)
    except BaseException:
        shutil.rmtree(folder)
        raise


def _suitable_plans(plans: Collection[GraphPlan], ranges: ActivationRanges, report: Report) -> tuple[GraphPlan, ...]:
    """Choose the graphs that compute the model correctly, and report why."""
    name, magnitude = limiting_magnitude(ranges.magnitudes)
    fuses_norms = can_fuse_norms(ranges.fused_norm_error)
    chosen = suitable_plans(plans, largest_magnitude=magnitude, fuses_norms=fuses_norms)
    if any(plan.precision == PRECISION_FP16 for plan in plans):
        line = f"fp16: {name} reaches {magnitude:.6g}, float16 holds at most {FLOAT16_MAX:.6g}"
        if not chosen:
            raise BundleError(f"{line}: export a graph in fp32 too")
        report(line if len(chosen) == len(plans) else f"{line}, so the bundle has no fp16 graph: serve it in fp32")
    if ranges.norm_ratio and any(plan.provider == "cuda" for plan in chosen):
        operators = "SkipLayerNormalization" if fuses_norms else "Add and LayerNormalization"
        report(f"norms on CUDA: {operators}, because |mean| / deviation of a row is at most {ranges.norm_ratio:.2g}")
    return chosen


def _encoders_by_precision(
    precisions: Collection[Precision],
    folded: Encoder,
    reference: Reference,
    sentences: TokenizedSentences,
    report: Report,
) -> tuple[dict[Precision, Encoder], list[str]]:
    """Return the encoder in float32 and in the given precisions, and the layers that int8 leaves in float32."""
    encoders, float32_layers = {PRECISION_FP32: folded}, list[str]()
    if PRECISION_FP16 in precisions:
        encoders[PRECISION_FP16] = to_float16(folded)
    if PRECISION_INT8 in precisions:
        # A model without texts, or of very short texts, is calibrated on random ids or features.
        calibration, has_sentences = sentences.calibration or reference.sequences, len(sentences.calibration) > 1
        encoders[PRECISION_INT8], float32_layers = quantize(
            folded, reference, calibration, neighbours=has_sentences, report=report
        )
        report(f"int8: linear layers that stay in float32: {', '.join(float32_layers) or 'none'}")
    return encoders, float32_layers


def _write_graphs(
    encoders: Mapping[Precision, Encoder], plans: Collection[GraphPlan], folder: Path, report: Report
) -> None:
    for precision, encoder in encoders.items():
        weights = WEIGHTS_FILES[precision]
        with WeightsFile(folder / weights) as shared:
            for plan in (*plans, ATTENTION_WEIGHTS_GRAPH):
                if plan.precision == precision:
                    shared.write_graph(trace(encoder, plan.layout), folder / plan.file)
        report(f"{weights}: {(folder / weights).stat().st_size / 1e6:.1f} MB")


def to_float16(encoder: Encoder) -> Encoder:
    """Return the encoder in float16, with the modules after pooling in float32."""
    half = copy.deepcopy(encoder).half()
    half.after_pooling = encoder.after_pooling
    return half


def _write_golden(reference: Reference, path: Path) -> None:
    outputs, lengths = concatenate(reference.outputs), [len(sequence) for sequence in reference.sequences]
    assert outputs.hidden is not None
    kept = _golden_rows(lengths)
    rows = pack(reference.sequences).feeds(reference.config.row_inputs)
    arrays: dict[str, Any] = {
        **rows,
        "lengths": np.array(lengths, np.int32),
        "hidden": outputs.hidden[kept],
    }
    if len(kept) < len(outputs.hidden):
        arrays["hidden_rows"] = kept
    if outputs.pooled is not None:
        arrays["pooled"] = outputs.pooled
    if outputs.logits is not None:
        arrays["logits"] = np.concatenate(outputs.logits)
    np.savez(path, **arrays)


def _golden_rows(lengths: list[int]) -> NDArray[np.int64]:
    """Return the hidden rows to store: all of a short sequence; of a long one, evenly spaced rows with both ends."""
    starts = np.cumsum([0, *lengths[:-1]])
    counts = [n if n <= SHORT_TOKENS else _LONG_HIDDEN_ROWS for n in lengths]
    ranges = zip(starts, lengths, counts, strict=True)
    return np.concatenate([np.linspace(start, start + n - 1, count, dtype=np.int64) for start, n, count in ranges])


def _manifest(
    config: EncoderConfig,
    text: TextConfig | None,
    name: str,
    plans: Collection[GraphPlan],
    float32_layers: list[str],
    ranges: ActivationRanges,
    folder: Path,
) -> Manifest:
    limiting, magnitude = limiting_magnitude(ranges.magnitudes)
    return Manifest(
        schema_version=SCHEMA_VERSIONS[bool(config.after_pooling or config.token_types)],
        name=name,
        vocabulary_size=config.vocabulary_size,
        feature_width=config.feature_width,
        min_tokens=config.min_tokens,
        fixed_length=config.fixed_length,
        class_row=config.prefix_rows > 0,
        prefix_rows=config.prefix_rows if config.prefix_rows > 1 else 0,
        max_tokens=config.max_tokens,
        max_text_tokens=text.max_tokens if text else 0,
        prompts=[asdict(prompt) for prompt in text.prompts] if text else (),
        default_prompt=text.default_prompt if text else "",
        pooling_skips_prompt=text is not None and text.pooling_skips_prompt,
        width=config.pooled_width,
        # Left out for other models, so that their digests do not change.
        hidden_width=config.width if config.after_pooling else 0,
        fixed_pooling=bool(config.after_pooling),
        layers=config.layers,
        heads=config.heads,
        gated_width=config.d_ff if config.gated else 0,
        distance_products=config.distance_keys or config.distance_queries,
        bias_heads=bias_heads(config),
        head_dim=config.head_dim,
        value_dim=config.value_dim,
        pooling=f"POOLING_{config.pooling.name}",
        normalized=config.normalize,
        largest_magnitude=Magnitude(name=limiting, value=magnitude),
        residual_norm_ratio=ranges.norm_ratio,
        head=_head(config.head) if config.head else None,
        token_types=config.token_types,
        takes_pairs=text is not None and text.pairs,
        graphs=[_graph(plan, float32_layers if plan.precision == PRECISION_INT8 else ()) for plan in plans],
        attend=_graph(ATTENTION_WEIGHTS_GRAPH) if (folder / ATTENTION_WEIGHTS_GRAPH.file).is_file() else None,
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


def _head(config: HeadConfig) -> Head:
    return Head(labels=config.labels, function=f"SCORE_FUNCTION_{config.function.name}", per_token=config.per_token)


def _graph(plan: GraphPlan, float32_layers: Iterable[str] = ()) -> Graph:
    return Graph(
        file=plan.file,
        lowering=plan.lowering,
        precision=plan.precision,
        weights_file=WEIGHTS_FILES[plan.precision],
        float32_layers=float32_layers,
        separate_norms=plan.layout is PackedCudaSeparateNorms,
    )


def _write_json(message: Message, path: Path) -> None:
    # Protobuf maps have no order. With sorted keys, equal models have equal digests.
    path.write_text(json_format.MessageToJson(message, sort_keys=True) + "\n", encoding="utf-8")
