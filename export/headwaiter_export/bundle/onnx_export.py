"""Export an ONNX file of the caller: the file itself computes the graph of the bundle, and is its reference.

PyTorch is asked only if the caller has the checkpoint that the file was made of.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from headwaiter_export.bundle.export import Written, check_finite, check_room, write_bundle
from headwaiter_export.bundle.graphs import ONNX_GRAPHS, WEIGHTS_FILES
from headwaiter_export.bundle.onnx_folder import OnnxChoices, read_onnx
from headwaiter_export.bundle.own_code import compare_with_code
from headwaiter_export.bundle.sentences import tokenize
from headwaiter_export.bundle.verification import MeasuredSentences, Report
from headwaiter_export.checkpoints.reader import LoadedModel
from headwaiter_export.config.choices import Pooling
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_export.encoder.reference import Reference, Sequence, concatenate, run_in_pytorch
from headwaiter_export.graphs.int8 import nearest
from headwaiter_export.graphs.onnx_encoder import OnnxEncoder
from headwaiter_export.graphs.onnx_graph import served_graph
from headwaiter_export.graphs.ranges import ActivationRanges
from headwaiter_export.graphs.tracing import WeightsFile
from headwaiter_proto.encoder_pb2 import (
    PRECISION_FP32,
    PRECISION_INT8,
    REFERENCE_SOURCE_ONNX_FILE,
    REFERENCE_SOURCE_ONNX_FILE_AND_PYTORCH,
)
from headwaiter_server.runtime.numeric_tolerances import smallest_cosine


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
    # Nothing else of a file is seen.
    ranges.magnitudes["outputs"] = max(
        float(np.abs(array).max())
        for each in reference.outputs
        for array in (each.pooled, each.hidden, *(each.logits or ()))
        if array is not None
    )
    compared, exact = REFERENCE_SOURCE_ONNX_FILE, None
    if read_pytorch is None:
        report(f"the results are compared with {file.path.name}; PyTorch was not asked")
    else:
        step("computing the reference in PyTorch")
        exact = read_pytorch().encoder
        report(_compare_with_pytorch(reference, exact, exact=plan.precision == PRECISION_FP32))
        compared = REFERENCE_SOURCE_ONNX_FILE_AND_PYTORCH
    sentences = None
    if plan.precision == PRECISION_INT8 and model.text is not None:
        step("running sentences in float32")
        exact = exact or _beside(file.path, choices, report)
        sentences = None if exact is None else _measured(exact, tokenize(model.text, encoder.config).measured)
    step(f"writing {plan.file}")
    graph = served_graph(encoder)
    tensors = [each.const_value for part in graph.graphs() for each in part.initializers.values()]
    check_room(sum(each.nbytes for each in tensors if each is not None), folder)
    with WeightsFile(folder / weights) as shared:
        shared.write_graph(graph, folder / plan.file)
    report(f"{weights}: {(folder / weights).stat().st_size / 1e6:.1f} MB")
    return Written(
        encoder.config,
        model.text,
        model.image,
        model.sound,
        (plan,),
        ranges,
        reference,
        sentences,
        None,
        [],
        "",
        model.source,
        encoder.reason,
        encoder.gives_rows,
        compared,
    )


def _beside(path: Path, choices: OnnxChoices, report: Report) -> Encoder | None:
    """Return the encoder of `model.onnx` in fp32 beside a file in int8; None without such a file."""
    usual = path.with_name("model.onnx")
    if usual != path and usual.is_file():
        encoder = read_onnx(usual, choices).encoder
        if isinstance(encoder, OnnxEncoder) and encoder.file.precision == PRECISION_FP32:
            report(f"{path.name} is compared with {usual.name} beside it, in fp32")
            return encoder
    report(f"what {path.name} loses against fp32 is unknown: give the checkpoint with --pytorch")
    return None


def _measured(exact: Encoder, sentences: list[Sequence]) -> MeasuredSentences | None:
    """Run sentences in float32, one at a time, as files in int8 run them."""
    head = exact.config.head
    if len(sentences) < 2 or (exact.config.pooling is Pooling.NONE and (head is None or head.per_token)):
        return None
    outputs = concatenate(run_in_pytorch(exact, sentences))
    logits = None if outputs.logits is None else np.concatenate(outputs.logits)
    return MeasuredSentences(
        [[each] for each in sentences], None if outputs.pooled is None else nearest(outputs.pooled), logits
    )


def _compare_with_pytorch(reference: Reference, encoder: Encoder, *, exact: bool) -> str:
    """Describe how far a file is from the checkpoint that it was made of.

    Raises:
        BundleError: the results of a file in fp32, `exact`, are out of tolerance.
    """
    types = reference.config.token_types

    def run(sequence: Sequence) -> dict[str, Any]:
        if types and not encoder.config.token_types:
            sequence = sequence[:, 0]
        (outputs,) = run_in_pytorch(encoder, [sequence])
        given = {"hidden": outputs.hidden, "pooled": outputs.pooled, "logits": outputs.logits and outputs.logits[0]}
        (own,) = reference.outputs[:1]
        return {name: rows for name, rows in given.items() if rows is not None and getattr(own, name) is not None}

    if exact:
        return compare_with_code(run, reference, "PyTorch")
    given = [run(each) for each in reference.sequences]
    differences = []
    for name in given[0]:
        rows = np.concatenate([each[name] for each in given])
        own = [getattr(each, name) for each in reference.outputs]
        joined = np.concatenate([part for each in own for part in (each if isinstance(each, list) else [each])])
        differences.append(f"smallest cosine {smallest_cosine(joined, rows):.4f} {name}")
    return f"beside PyTorch in float32: {', '.join(differences)}"
