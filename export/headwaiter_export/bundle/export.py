"""Write a bundle: graphs checked against PyTorch, and golden inputs with which a server checks the graphs again.

`export_model` shows the order of the steps; every export command ends with it.
"""

import shutil
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from google.protobuf import json_format
from google.protobuf.message import Message

from headwaiter_export.bundle.atomic_folder import BundleError, atomic_folder
from headwaiter_export.bundle.golden_writer import write_golden
from headwaiter_export.bundle.graphs import (
    ATTENTION_WEIGHTS_GRAPH,
    DEFAULT_GRAPHS,
    WEIGHTS_FILES,
    GraphPlan,
    suitable_plans,
)
from headwaiter_export.bundle.own_code import OwnCode, compare_with_code, compare_with_library
from headwaiter_export.bundle.padding import BATCHES, check_float16, measure_padding
from headwaiter_export.bundle.sentences import SENTENCES, TokenizedSentences, tokenize
from headwaiter_export.bundle.verification import (
    AttentionReference,
    MeasuredSentences,
    Report,
    check_attention_weights,
    check_graphs,
    check_packing,
    measure_sentences,
    without_too_long,
)
from headwaiter_export.checkpoints.library_rows import LibraryRows
from headwaiter_export.checkpoints.reader import LoadedModel
from headwaiter_export.checkpoints.texts import TextConfig
from headwaiter_export.config.choices import Pooling
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.config.head import HeadConfig
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_export.encoder.found_attention import NotPackableError
from headwaiter_export.encoder.own_module import ModuleEncoder
from headwaiter_export.encoder.padded_module import PaddedModuleEncoder
from headwaiter_export.encoder.reference import Reference
from headwaiter_export.graphs.float16 import in_float16, limiting_magnitude
from headwaiter_export.graphs.int8 import quantize
from headwaiter_export.graphs.packed_cuda import PackedCudaSeparateNorms, bias_heads
from headwaiter_export.graphs.ranges import ActivationRanges
from headwaiter_export.graphs.tracing import WeightsFile, free_memory, frozen_objects, trace
from headwaiter_proto.encoder_pb2 import (
    ISOLATION_MIXED,
    ISOLATION_ONE_SEQUENCE,
    PRECISION_FP16,
    PRECISION_FP32,
    PRECISION_INT8,
    REFERENCE_SOURCE_UNSPECIFIED,
    Head,
    ImageFormat,
    ReferenceSource,
    SoundFormat,
    TargetFormat,
)
from headwaiter_proto.encoder_pb2 import Pooling as ProtoPooling
from headwaiter_proto.manifest_pb2 import LOWERING_PADDED, File, Graph, HubSource, Magnitude, Manifest, Padding
from headwaiter_proto.rules.pooling import POOLINGS_OF_GRAPHS
from headwaiter_server.runtime.bundle import GOLDEN, MANIFEST, PARITY, SCHEMA_VERSIONS, TOKENIZER, sha256_of
from headwaiter_server.runtime.manifest import MAX_NAME_CHARACTERS, is_model_name
from headwaiter_server.runtime.numeric_tolerances import FLOAT16_MAX

__all__ = ["BundleError", "export_bundle", "export_model"]
# int8 has the embeddings in float32, and perhaps some layers.
_WEIGHT_BYTES = {PRECISION_FP32: 4, PRECISION_FP16: 2, PRECISION_INT8: 2}


def export_bundle(
    encoder: Encoder,
    text: TextConfig | None,
    destination: Path | str,
    name: str,
    report: Report = lambda line: None,
    plans: Collection[GraphPlan] | None = None,
    image: ImageFormat | None = None,
    compare: OwnCode | None = None,
) -> None:
    """Write a complete bundle to `destination`; after an error, write nothing.

    Args:
        encoder: the encoder in float32.
        text: tokenizer, limit and prompts; None if the model accepts no texts.
        destination: folder of the bundle; it must be missing or empty.
        name: name of the model in requests and replies, 1 to 128 printable characters.
        report: called with a line of text after each step.
        plans: graphs to write; None for all but that in bf16.
        image: the images that the model takes; None if the model takes no images.
        compare: your own code, which maps one sequence to any of its outputs `hidden` [n, width], `pooled` and
            `logits`; the export compares them with the encoder's.

    Raises:
        BundleError: the name is wrong, the destination is not empty or another export writes to it, the disk has no
            room, a graph or `compare` is out of tolerance, or all plans are in fp16 and the model's numbers exceed its
            range.
    """
    export_model(
        lambda: LoadedModel(encoder, text, image), Path(destination), name, report, plans=plans, compare=compare
    )


def export_model(
    read: Callable[[], LoadedModel],
    destination: Path,
    name: str,
    report: Report = lambda line: None,
    step: Report = lambda what: None,
    plans: Collection[GraphPlan] | None = None,
    compare: OwnCode | None = None,
) -> None:
    """Write a bundle like `export_bundle`, of a model that `read` returns.

    The encoder is not in memory while ONNX Runtime runs the graphs, if nothing but the result of `read` refers to it.
    `step` is called with what begins now.
    """
    plans = DEFAULT_GRAPHS if plans is None else plans
    write_bundle(
        lambda folder: _write_graphs(read, plans, folder, report, step, compare), destination, name, report, step
    )


def write_bundle(
    write: Callable[[Path], "Written"], destination: Path, name: str, report: Report, step: Report
) -> None:
    """Complete the bundle whose graphs `write` writes to a folder; `export_model` describes the other arguments."""
    _check_name(name)
    with atomic_folder(destination) as folder, _one_thread(), frozen_objects():
        step("reading the model")
        written = write(folder)
        padding = _check_graphs(written, folder, report, step)
        _write_json(written.manifest(name, folder, padding), folder / MANIFEST)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let PyTorch compute on one thread: the number of threads changes sums, and with them the bundle's digest."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True, eq=False, kw_only=True)
class Written:
    """The graphs that were written, and what is needed to check and to describe them, without the encoder.

    Attributes:
        plans: the graphs, without that of attention weights.
        reference: PyTorch's outputs, for long sequences too.
        sentences: sentences that calibration has not seen, and PyTorch's results; None without int8 or texts, or if
            there is nothing to compare.
        attention: PyTorch's attention weights; None without the graph of attention weights.
        float32_layers: the linear layers that int8 leaves in float32.
        module: the class of the module that computes the rows, if it is one of the caller's; otherwise empty.
        source: `LoadedModel.source`.
        padding_reason: why the graphs are padded; empty for other graphs.
        gives_rows: whether the graphs give hidden rows.
        compared_with: where the outputs of the reference come from.
        library_rows: `LoadedModel.library_rows`.
    """

    config: EncoderConfig
    text: TextConfig | None
    image: ImageFormat | None
    sound: SoundFormat | None
    plans: tuple[GraphPlan, ...]
    ranges: ActivationRanges
    reference: Reference
    sentences: MeasuredSentences | None
    attention: AttentionReference | None
    float32_layers: list[str]
    module: str
    source: HubSource | None
    padding_reason: str
    gives_rows: bool
    compared_with: ReferenceSource = REFERENCE_SOURCE_UNSPECIFIED
    library_rows: LibraryRows | None = None

    def _most_entries(self) -> int:
        """Return the most numbers other than 0 in a pooled vector of the reference."""
        vectors = [outputs.pooled for outputs in self.reference.outputs if outputs.pooled is not None]
        return max(int(np.count_nonzero(each, axis=1).max()) for each in vectors)

    def manifest(self, name: str, folder: Path, padding: Padding | None) -> Manifest:
        """Return the manifest of a bundle whose other files are complete."""
        config, text = self.config, self.text
        template = text.pair_template if text else None
        changes_vectors = bool(config.after_pooling or config.row_modules or config.vocabulary_head)
        pooling = f"POOLING_{config.pooling.name}"
        if not self.gives_rows and config.head is None:
            pooling = "POOLING_OWN"
        graphs_pool = ProtoPooling.Value(pooling) in POOLINGS_OF_GRAPHS
        fixed_pooling = graphs_pool or (config.pooling is not Pooling.NONE and changes_vectors)
        prompts = text.prompts if text else ()
        # What the server does with texts of some prompts, besides putting a text before them.
        text_rules = any(each.max_tokens or each.expanded_tokens or each.skiplist_ids for each in prompts)
        first_text_keeps_more = text is not None and text.first_text_keeps_more
        limiting, magnitude = limiting_magnitude(self.ranges.magnitudes)
        return Manifest(
            schema_version=SCHEMA_VERSIONS[
                bool(
                    fixed_pooling
                    or config.token_types
                    or template
                    or text_rules
                    or config.takes_target
                    or first_text_keeps_more
                )
            ],
            name=name,
            vocabulary_size=config.vocabulary_size,
            # The last value of a row says whether the row belongs to a target.
            feature_width=config.feature_width + (config.takes_target and not config.takes_tokens),
            min_tokens=config.min_tokens,
            fixed_length=config.fixed_length,
            class_row=config.prefix_rows > 0,
            prefix_rows=config.prefix_rows if config.prefix_rows > 1 else 0,
            max_tokens=config.max_tokens,
            max_text_tokens=text.max_tokens if text else 0,
            prompts=[asdict(prompt) for prompt in prompts],
            default_prompt=text.default_prompt if text else "",
            pooling_skips_prompt=text is not None and text.pooling_skips_prompt,
            width=config.pooled_width if self.gives_rows or config.head is None else 0,
            without_rows=not self.gives_rows,
            padding=padding,
            # Left out for other models, so that their digests do not change.
            hidden_width=config.hidden_width if fixed_pooling else 0,
            row_width=config.width if config.row_modules else 0,
            fixed_pooling=fixed_pooling,
            sparse=config.vocabulary_head is not None,
            sparse_entries=self._most_entries() if config.vocabulary_head else 0,
            layers=0 if padding else config.attention_layers,
            first_row_layers=config.first_row_layers,
            heads=0 if padding else config.heads,
            convolution_values=config.convolution_values,
            gated_width=config.d_ff if config.gated else 0,
            distance_products=config.multiplies_distances,
            bias_heads=bias_heads(config),
            head_dim=0 if padding else config.head_dim,
            value_dim=0 if padding else config.value_dim,
            pooling=pooling,
            normalized=config.normalize,
            largest_magnitude=Magnitude(name=limiting, value=magnitude),
            residual_norm_ratio=self.ranges.norm_ratio,
            image=self.image,
            sound=self.sound,
            reference_module=self.module,
            reference_source=self.compared_with,
            source=self.source,
            target=TargetFormat(start_id=config.decoder.start_id) if config.decoder and config.takes_target else None,
            head=_head(config.head) if config.head else None,
            token_types=config.token_types,
            takes_pairs=text is not None and text.pairs,
            unweighted_ids=text.unweighted_ids if text else (),
            pair_template=template,
            first_text_keeps_more=first_text_keeps_more,
            graphs=[
                _graph(plan, self.float32_layers if plan.precision == PRECISION_INT8 else ()) for plan in self.plans
            ],
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


def _check_name(name: str) -> None:
    if not is_model_name(name):
        raise BundleError(
            f"the model's name is {name!r}: give 1 to {MAX_NAME_CHARACTERS} printable characters, not only spaces"
        )


def _suitable_plans(plans: Collection[GraphPlan], ranges: ActivationRanges, report: Report) -> tuple[GraphPlan, ...]:
    """Choose the graphs that compute the model correctly, and report why."""
    name, magnitude = limiting_magnitude(ranges.magnitudes)
    chosen = suitable_plans(plans, largest_magnitude=magnitude, fuses_norms=ranges.fuse_norms)
    if any(plan.precision == PRECISION_FP16 for plan in plans):
        line = f"fp16: the largest value is {magnitude:.6g} ({name}); fp16 holds up to {FLOAT16_MAX:.6g}"
        if not chosen:
            raise BundleError(f"{line}: export a graph in fp32 too")
        report(line if len(chosen) == len(plans) else f"{line}, so the bundle has no fp16 graph: serve it in fp32")
    if ranges.norm_ratio and any(plan.provider == "cuda" for plan in chosen):
        how = (
            "fused with" if ranges.fuse_norms else "apart from, because fusing them would round too much in this model,"
        )
        report(f"norms on CUDA: {how} the addition before them")
    return chosen


def _write_graphs(
    read: Callable[[], LoadedModel],
    plans: Collection[GraphPlan],
    folder: Path,
    report: Report,
    step: Report,
    compare: OwnCode | None,
) -> Written:
    """Write the graphs of a model; the model is out of memory when the function returns."""
    model = read()
    encoder, text = model.encoder, model.text
    weights = sum(tensor.numel() for tensor in encoder.state_dict().values())
    check_room(sum(weights * _WEIGHT_BYTES[precision] for precision in {plan.stored for plan in plans}), folder)
    step("computing the reference in PyTorch")
    ranges = ActivationRanges(encoder)
    with ranges.watch(encoder):
        reference = Reference.compute(encoder, ranges.sequence)
    if compare is not None:
        report(compare_with_code(compare, reference))
    checked = reference.with_long_sequences(encoder)
    check_finite(checked)
    chosen = _suitable_plans(plans, ranges, report)
    sentences = TokenizedSentences([], []) if text is None else tokenize(text, encoder.config)
    folded, float32_layers, measured = encoder.fold_temperatures().merge_dense(), list[str](), None
    for precision, weights in WEIGHTS_FILES.items():
        of_precision = [plan for plan in chosen if plan.stored == precision]
        if not of_precision:
            continue
        converted = folded
        free_memory()
        if precision == PRECISION_INT8:
            step("choosing the layers of int8")
            # A model without texts, or of very short texts, is calibrated on random ids or features.
            calibration, has_sentences = sentences.calibration or reference.sequences, len(sentences.calibration) > 1
            converted, float32_layers = quantize(
                folded, reference, calibration, neighbours=has_sentences, report=report
            )
            if float32_layers:
                report(f"int8: linear layers that stay in float32: {', '.join(float32_layers)}")
            measured = MeasuredSentences.of(encoder, sentences.measured)
        halves = in_float16(folded) if precision == PRECISION_FP16 else nullcontext(converted)
        try:
            with halves as converted, WeightsFile(folder / weights) as shared:
                for plan in of_precision:
                    step(f"tracing {plan.file}")
                    shared.write_graph(trace(converted, plan.layout), folder / plan.file)
                    free_memory()
            for plan in of_precision:
                if plan.lowering == LOWERING_PADDED and precision == PRECISION_FP16:
                    check_float16(folder / plan.file)
        except NotPackableError as error:
            if precision != PRECISION_FP16 or len(of_precision) == len(chosen):
                raise
            report(f"fp16: the bundle has no fp16 graph, because the module does not run in float16: {error}")
            chosen = tuple(plan for plan in chosen if plan.precision != PRECISION_FP16)
            for name in (weights, *(plan.file for plan in of_precision)):
                (folder / name).unlink(missing_ok=True)
            continue
        report(f"{weights}: {(folder / weights).stat().st_size / 1e6:.1f} MB")
    has_attention = ATTENTION_WEIGHTS_GRAPH in chosen
    return Written(
        config=encoder.config,
        text=text,
        image=model.image,
        sound=model.sound,
        plans=tuple(plan for plan in chosen if plan is not ATTENTION_WEIGHTS_GRAPH),
        ranges=ranges,
        reference=checked,
        sentences=measured,
        attention=AttentionReference.compute(encoder, reference) if has_attention else None,
        float32_layers=float32_layers,
        module=encoder.class_name if isinstance(encoder, ModuleEncoder) else "",
        source=model.source,
        padding_reason=encoder.reason if isinstance(encoder, PaddedModuleEncoder) else "",
        gives_rows=encoder.gives_rows,
        library_rows=model.library_rows,
    )


def _check_graphs(written: Written, folder: Path, report: Report, step: Report) -> Padding | None:
    """Compare the graphs with PyTorch, write the golden inputs and what was measured, and return how graphs pad."""
    reference, padding = written.reference, None
    if written.library_rows is not None:
        step("comparing with transformers")
        report(compare_with_library(written.library_rows, reference))
        free_memory()
    if written.module:
        step("comparing sequences alone and beside others")
    if written.padding_reason:
        padding = measure_padding(folder / written.plans[0].file, reference, written.padding_reason)
        reference = without_too_long(reference, padding.cell_values)
    elif written.module:
        check_packing(folder / written.plans[0].file, reference)
    source = "the ONNX file" if written.compared_with else "PyTorch"
    check = partial(check_graphs, written.plans, folder, reference, written.ranges.magnitudes, report, step, source)
    try:
        parity = check(padding.isolation if padding else ISOLATION_MIXED)
    except BundleError:
        if padding is None or padding.isolation == ISOLATION_ONE_SEQUENCE:
            raise
        # Longer sequences than those on which the isolation was measured may need more of it.
        padding.isolation = ISOLATION_ONE_SEQUENCE
        parity = check(padding.isolation)
    if padding is not None:
        report(f"padded: {BATCHES[padding.isolation]}")
    if written.sentences is not None:
        parity.sentences = SENTENCES
        step("comparing sentences")
        measure_sentences(parity, folder, written.sentences, report)
    _write_json(parity, folder / PARITY)
    if written.attention is not None:
        step("comparing attention weights")
        free_memory()
        check_attention_weights(folder / ATTENTION_WEIGHTS_GRAPH.file, written.attention, report)
    write_golden(reference, folder / GOLDEN)
    if written.text is not None:
        (folder / TOKENIZER).write_text(written.text.tokenizer, encoding="utf-8")
    return padding


def check_finite(reference: Reference) -> None:
    """Check that the outputs are numbers, which no graph could be compared with otherwise."""
    for sequence, outputs in zip(reference.sequences, reference.outputs, strict=True):
        for name, values in (("hidden", outputs.hidden), ("pooled", outputs.pooled), ("logits", outputs.logits)):
            arrays = values if isinstance(values, list) else [values]
            if not all(np.isfinite(each).all() for each in arrays if each is not None):
                raise BundleError(
                    f"the model gives {name} outputs with NaN or infinity for a sequence of {len(sequence)} tokens: "
                    "correct the weights"
                )


def check_room(needed: int, folder: Path) -> None:
    """Check that the disk has room for the weights of all precisions, in bytes."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise BundleError(
            f"the bundle needs about {needed / 1e6:,.0f} MB, but {folder.parent} has {free / 1e6:,.0f} MB free: free "
            "space, or choose another folder"
        )


def _head(config: HeadConfig) -> Head:
    return Head(labels=config.labels, function=f"SCORE_FUNCTION_{config.function.name}", per_token=config.per_token)


def _graph(plan: GraphPlan, float32_layers: Iterable[str] = ()) -> Graph:
    return Graph(
        file=plan.file,
        lowering=plan.lowering,
        precision=plan.precision,
        weights_file=WEIGHTS_FILES[plan.stored],
        float32_layers=float32_layers,
        separate_norms=plan.layout is PackedCudaSeparateNorms,
    )


def _write_json(message: Message, path: Path) -> None:
    # Protobuf maps have no order. With sorted keys, equal models have equal digests.
    path.write_text(json_format.MessageToJson(message, sort_keys=True) + "\n", encoding="utf-8")
