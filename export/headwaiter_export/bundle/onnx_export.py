"""Export an ONNX file of the caller: the file itself computes the graph of the bundle, and is its reference.

PyTorch is a second reference if the caller has the checkpoint that the file was made of.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from headwaiter_export.bundle.atomic_folder import BundleError
from headwaiter_export.bundle.export import Written, check_finite, check_room, write_bundle
from headwaiter_export.bundle.graphs import ONNX_GRAPHS, WEIGHTS_FILES
from headwaiter_export.bundle.onnx_folder import OnnxChoices, read_onnx
from headwaiter_export.bundle.sentences import tokenize
from headwaiter_export.bundle.verification import MeasuredSentences, Report
from headwaiter_export.checkpoints.json_files import CheckpointError
from headwaiter_export.checkpoints.reader import LoadedModel
from headwaiter_export.config.choices import Pooling
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.config.field_checks import ConfigError
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_export.encoder.reference import Reference, Sequence, concatenate, run_in_pytorch
from headwaiter_export.graphs.int8 import nearest
from headwaiter_export.graphs.onnx_encoder import OnnxEncoder
from headwaiter_export.graphs.onnx_file import OnnxFile
from headwaiter_export.graphs.onnx_graph import served_graph
from headwaiter_export.graphs.ranges import ActivationRanges
from headwaiter_export.graphs.tracing import WeightsFile
from headwaiter_proto.encoder_pb2 import (
    PRECISION_FP32,
    PRECISION_INT8,
    REFERENCE_SOURCE_ONNX_FILE,
    REFERENCE_SOURCE_ONNX_FILE_AND_PYTORCH,
    Precision,
)
from headwaiter_server.runtime.graph import GraphOutputs
from headwaiter_server.runtime.numeric_tolerances import TOLERANCES, Difference, difference, violation

_OUTPUTS = ("pooled", "hidden", "logits")


def export_onnx(
    path: Path,
    destination: Path,
    name: str,
    choices: OnnxChoices,
    report: Report = lambda line: None,
    step: Report = lambda what: None,
    read_pytorch: Callable[[], LoadedModel] | None = None,
) -> None:
    """Write a bundle of an ONNX file like `export_model`.

    Args:
        path: the file.
        destination: folder of the bundle.
        name: name of the model.
        choices: what the files beside the ONNX file do not say.
        report: called with a line of text after each step.
        step: called with what begins now.
        read_pytorch: reads the checkpoint that the file was made of; None to compare with the file alone.

    Raises:
        BundleError: the bundle cannot be written, or the graph or PyTorch gives other results than the file.
        CheckpointError: a setting beside the file cannot be reproduced.
        ConfigError: the file cannot be served, or a choice does not fit it.
    """

    def write(folder: Path) -> Written:
        model = read_onnx(path, choices)
        assert isinstance(model.encoder, OnnxEncoder)
        for line in model.assumptions:
            report(line)
        return _write(model, model.encoder, choices, folder, report, step, read_pytorch)

    write_bundle(write, destination, name, report, step)


def _write(
    model: LoadedModel,
    encoder: OnnxEncoder,
    choices: OnnxChoices,
    folder: Path,
    report: Report,
    step: Report,
    read_pytorch: Callable[[], LoadedModel] | None,
) -> Written:
    """Write the graph of a file."""
    file = encoder.file
    plan = ONNX_GRAPHS[file.precision]
    weights = WEIGHTS_FILES[plan.precision]
    report(f"{file.path.name} is in {file.number_format}, of opset {file.opset}")
    if fused := file.fused_operators:
        report(
            f"{file.path.name} has the operators {', '.join(fused)}, as an optimiser wrote them (O2 to O4): on CPUs, "
            "a file without them is faster"
        )
    step(f"running {file.path.name} on one sequence at a time")
    reference = Reference.compute(encoder).with_long_sequences(encoder)
    check_finite(reference)
    ranges = ActivationRanges(encoder)
    # What is inside the file is not measured.
    ranges.magnitudes["outputs"] = max(
        float(np.abs(array).max())
        for each in reference.outputs
        for array in (each.pooled, each.hidden, *(each.logits or ()))
        if array is not None
    )
    compared, exact = REFERENCE_SOURCE_ONNX_FILE, None
    if read_pytorch is None:
        report(f"the results are compared with those of {file.path.name} alone: --pytorch also compares a checkpoint")
    else:
        step("computing the reference in PyTorch")
        exact = read_pytorch().encoder
        report(_compare_with_pytorch(reference, exact, file))
        compared = REFERENCE_SOURCE_ONNX_FILE_AND_PYTORCH
    sentences = None
    if plan.precision == PRECISION_INT8 and model.text is not None:
        step("running sentences in float32")
        exact = exact or _beside(file.path, choices, report)
        if exact is not None:
            sentences = _measured(exact, encoder.config, tokenize(model.text, encoder.config).measured)
    step(f"writing {plan.file}")
    graph = served_graph(encoder)
    tensors = [each.const_value for part in graph.graphs() for each in part.initializers.values()]
    check_room(sum(each.nbytes for each in tensors if each is not None), folder)
    with WeightsFile(folder / weights) as shared:
        shared.write_graph(graph, folder / plan.file)
    report(f"{weights}: {(folder / weights).stat().st_size / 1e6:.1f} MB")
    return Written(
        config=encoder.config,
        text=model.text,
        image=model.image,
        sound=model.sound,
        plans=(plan,),
        ranges=ranges,
        reference=reference,
        sentences=sentences,
        attention=None,
        float32_layers=[],
        module="",
        source=model.source,
        padding_reason=encoder.reason,
        gives_rows=encoder.gives_rows,
        compared_with=compared,
    )


def _beside(path: Path, choices: OnnxChoices, report: Report) -> Encoder | None:
    """Return the encoder of `model.onnx` in fp32 beside a file in int8; None without such a file."""
    usual = path.with_name("model.onnx")
    if usual != path and usual.is_file():
        try:
            encoder = read_onnx(usual, choices).encoder
        except (CheckpointError, ConfigError) as error:
            report(f"{path.name} cannot be compared with the file beside it: {error}")
        else:
            if isinstance(encoder, OnnxEncoder) and encoder.file.precision == PRECISION_FP32:
                report(f"{path.name} is compared with {usual.name} beside it, in fp32")
                return encoder
    report(f"what {path.name} loses against fp32 is unknown: give the checkpoint with --pytorch")
    return None


def _measured(exact: Encoder, config: EncoderConfig, sentences: list[Sequence]) -> MeasuredSentences | None:
    """Run sentences for a file of this configuration in float32, one at a time, as files in int8 run them."""
    head = exact.config.head
    if len(sentences) < 2 or (exact.config.pooling is Pooling.NONE and (head is None or head.per_token)):
        return None
    outputs = _run(exact, config, sentences)
    logits = None if outputs.logits is None else np.concatenate(outputs.logits)
    return MeasuredSentences(
        [[each] for each in sentences], None if outputs.pooled is None else nearest(outputs.pooled), logits
    )


def _compare_with_pytorch(reference: Reference, encoder: Encoder, file: OnnxFile) -> str:
    """Describe how far a file is from the checkpoint that it was made of.

    Raises:
        BundleError: the checkpoint takes or gives something else than the file, or its results are too far from it.
    """
    _check_inputs(reference.config, encoder.config, file)
    given, exact = concatenate(reference.outputs), _run(encoder, reference.config, reference.sequences)
    shapes, exact_shapes = _shapes(given), _shapes(exact)
    common = shapes.keys() & exact_shapes.keys()
    if not common or any(shapes[name] != exact_shapes[name] for name in common):
        raise BundleError(
            f"{file.path} gives {_described(shapes)}, and the checkpoint in PyTorch gives {_described(exact_shapes)}: "
            "give the checkpoint that the file was made of"
        )
    given, exact = (
        GraphOutputs(*(getattr(each, name) if name in common else None for name in _OUTPUTS)) for each in (given, exact)
    )
    measured = difference(given, exact)
    if broken := _violation(measured, file.precision):
        raise BundleError(
            f"{file.path}: {broken}: give the checkpoint that the file was made of, or leave --pytorch out"
        )
    logits = f", logits differ by at most {measured.logits_max_abs:.1e}" if "logits" in common else ""
    vectors = "pooled" if "pooled" in common else "hidden"
    cosines = f", cosines of {vectors} at least {measured.min_cosine:.6f}, on average {measured.mean_cosine:.6f}"
    return f"compared with PyTorch in float32{logits}{cosines if common != {'logits'} else ''}"


def _check_inputs(config: EncoderConfig, exact: EncoderConfig, file: OnnxFile) -> None:
    """Check that a checkpoint takes what a file takes."""
    for name in ("vocabulary_size", "feature_width", "max_tokens", "token_types"):
        own, other = getattr(config, name), getattr(exact, name)
        if name == "token_types" and not other:
            continue
        if other < own or (name == "feature_width" and other != own):
            raise BundleError(
                f"{file.path} has {name} {own:,}, and the checkpoint in PyTorch has {other:,}: give the checkpoint of "
                "the file, or a smaller --max-tokens or --vocabulary-size"
            )


def _run(exact: Encoder, config: EncoderConfig, sequences: list[Sequence]) -> GraphOutputs:
    """Run an encoder on sequences for a file of this configuration."""
    if config.token_types and not exact.config.token_types:
        sequences = [each[:, 0] for each in sequences]
    elif exact.config.token_types and not config.token_types:
        # Such a file was traced with token types of 0.
        sequences = [np.stack([each, np.zeros_like(each)], axis=1) for each in sequences]
    return concatenate(run_in_pytorch(exact, sequences))


def _violation(measured: Difference, precision: Precision) -> str | None:
    """Describe how a file's results are too far from PyTorch's; return None if they are not.

    In fp32 and fp16, the limits are those of our own graphs. Files that other programs quantised lose more: that of
    sentence-transformers for all-MiniLM-L6-v2 in int8 has cosines of 0.86 to 1, 0.98 on average. On average, they must
    reach the least cosine of a row in our int8.
    """
    if precision != PRECISION_INT8:
        return violation(measured, precision)
    tolerance = TOLERANCES[precision]
    if not measured.mean_cosine >= tolerance.hidden_min_cosine:
        least = tolerance.hidden_min_cosine
        return f"the cosine to PyTorch is {measured.mean_cosine:.4f} on average, less than {least}"
    if not measured.logits_max_relative <= tolerance.max_relative:
        return (
            f"logits differ from PyTorch's by {measured.logits_max_relative:.2f} of PyTorch's largest value, more than "
            f"{tolerance.max_relative}"
        )
    return None


def _shapes(outputs: GraphOutputs) -> dict[str, list[tuple[int, ...]]]:
    """Return the shapes of all parts of each output."""
    parts = {name: getattr(outputs, name) for name in _OUTPUTS}
    return {
        name: [each.shape for each in (array if isinstance(array, list) else [array])]
        for name, array in parts.items()
        if array is not None
    }


def _described(shapes: dict[str, list[tuple[int, ...]]]) -> str:
    return " and ".join(f"{name} of width {sizes[0][-1]:,}" for name, sizes in shapes.items()) or "nothing to compare"
