"""Compare an encoder with other code that computes the same: its owner's, or that of transformers."""

import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwaiter_export.bundle.atomic_folder import BundleError
from headwaiter_export.checkpoints.library_rows import LibraryRows
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_export.encoder.reference import SHORT_TOKENS, Reference, Sequence, concatenate, run_in_pytorch
from headwaiter_proto.encoder_pb2 import PRECISION_FP32
from headwaiter_proto.rules.target import divided
from headwaiter_server.runtime.graph import GraphOutputs
from headwaiter_server.runtime.numeric_tolerances import TOLERANCES, largest_differences
from headwaiter_server.runtime.packing import Parts, pack

# Maps one sequence to the outputs of its owner's code: any of `hidden` [n, hidden_width], `pooled` [pooled_width], of
# unit length if the encoder normalizes, and `logits`. Of a sequence with a target, `hidden` has the rows of the target.
OwnCode = Callable[[Sequence], Mapping[str, Any]]
_OUTPUTS = ("hidden", "pooled", "logits")


def compare_with_code(own_code: OwnCode, reference: Reference, source: str = "your code") -> str:
    """Compare an encoder's outputs with those of its owner's code for the same sequences; describe the differences.

    `source` is what errors call the code.

    Raises:
        BundleError: the outputs differ by more than the tolerance of fp32, or have another shape.
    """
    given: dict[str, list[NDArray[Any]]] = {}
    for sequence in reference.sequences:
        outputs: object = own_code(sequence)
        if not isinstance(outputs, Mapping):
            raise BundleError(
                f"{source} returns a {type(outputs).__name__}: return a dictionary with any of {', '.join(_OUTPUTS)}"
            )
        for name, rows in outputs.items():
            given.setdefault(name, []).append(np.atleast_2d(np.asarray(rows)))
    try:
        joined = {name: np.concatenate(parts) for name, parts in given.items()}
    except ValueError as error:
        raise BundleError(f"the outputs of {source} do not fit together ({error}): return arrays of rows") from None
    outputs = _without_sources(concatenate(reference.outputs), reference.sequences, reference.config)
    return _compare(source, outputs, joined, targets_alone=reference.config.takes_target)


def compare_with_library(library_rows: LibraryRows, reference: Reference) -> str:
    """Compare an encoder's hidden rows with those of transformers; describe the largest difference.

    The graphs of a bundle are compared with the encoder, which is our own code. This comparison finds what the encoder
    computes otherwise than transformers, for example because of a setting that it reads wrongly.

    Raises:
        BundleError: rows differ by more than the tolerance of fp32.
    """
    reference = reference.only(lambda tokens: tokens <= SHORT_TOKENS)
    rows = library_rows(reference.sequences)
    # For a sequence of masks alone, ESM of transformers divides by 0.
    finite = [i for i, each in enumerate(rows) if np.isfinite(each).all()]
    if not finite:
        return "not compared with transformers, which cannot compute the checkpoint in this form"
    given = iter([rows[i] for i in finite])
    return compare_with_code(lambda _: {"hidden": next(given)}, reference.select(finite), "transformers")


def compare_with_file(path: Path, encoder: Encoder) -> str:
    """Compare an encoder with inputs and outputs in a .npz file, whose arrays are named as in golden.npz.

    Raises:
        BundleError: the file cannot be read or does not fit the encoder, or the outputs differ by more than the
            tolerance of fp32.
    """
    try:
        # Opened here, because numpy closes no file that is damaged.
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: np.asarray(file[name]) for name in file}
        sequences = _sequences(arrays, encoder.config)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise BundleError(
            f"{path} cannot be compared ({error}): save {', '.join(encoder.config.row_inputs)}, lengths, and any of "
            f"{', '.join(_OUTPUTS)} with numpy.savez"
        ) from None
    actual = _without_sources(concatenate(run_in_pytorch(encoder, sequences)), sequences, encoder.config)
    given = {name: arrays[name] for name in _OUTPUTS if name in arrays}
    return _compare(str(path), actual, given, targets_alone=encoder.config.takes_target)


def _sequences(arrays: Mapping[str, NDArray[Any]], config: EncoderConfig) -> list[Sequence]:
    """Cut the concatenated rows into sequences, and check that the encoder takes them."""
    rows = np.stack([arrays[name] for name in config.row_inputs], axis=-1) if config.token_types else None
    if rows is None:
        rows = arrays[config.token_input]
    # The last value of a row of features says whether the row belongs to a target.
    width = config.feature_width + config.takes_target
    wanted = (width,) if not config.takes_tokens else (2,) if config.token_types else ()
    lengths = arrays["lengths"]
    if rows.shape[1:] != wanted or lengths.ndim != 1 or lengths.dtype.kind != "i" or lengths.sum() != len(rows):
        shape = [int(lengths.sum()) if lengths.dtype.kind == "i" else "rows", *wanted]
        raise ValueError(
            f"{config.token_input} has the shape {list(rows.shape)} instead of {shape}, and lengths "
            f"{lengths.tolist()!s:.99}"
        )
    if not len(lengths) or lengths.min() < config.min_tokens or lengths.max() > config.max_tokens:
        raise ValueError(f"lengths are not from {config.min_tokens} to {config.max_tokens}")
    if config.takes_tokens:
        limits = [config.vocabulary_size, *([config.token_types] if config.token_types else [])]
        if rows.dtype.kind not in "iu" or (rows < 0).any() or (rows >= np.array(limits)).any():
            raise ValueError(f"{config.token_input} has other numbers than ids from 0 to {limits[0] - 1}")
        rows = rows.astype(np.int64)
    if config.takes_target:
        rows = divided(rows, np.cumsum(lengths).tolist(), config.decoder.start_id if config.decoder else None)
    return np.split(rows if config.takes_tokens else rows.astype(np.float32), np.cumsum(lengths)[:-1])


def _without_sources(outputs: GraphOutputs, sequences: list[Sequence], config: EncoderConfig) -> GraphOutputs:
    """Return outputs whose hidden rows are those of targets, if the encoder takes targets."""
    if not config.takes_target:
        return outputs
    assert outputs.hidden is not None
    return replace(outputs, hidden=outputs.hidden[Parts.of(pack(sequences)).is_target])


def _compare(source: str, actual: GraphOutputs, given: Mapping[str, NDArray[Any]], *, targets_alone: bool) -> str:
    tolerance = TOLERANCES[PRECISION_FP32]
    limits = {"hidden": tolerance.hidden, "pooled": tolerance.pooled, "logits": tolerance.logits}
    computed = {
        "hidden": actual.hidden,
        "pooled": actual.pooled,
        "logits": None if actual.logits is None else np.concatenate(actual.logits),
    }
    if not given or given.keys() - computed.keys():
        raise BundleError(f"{source} gives {', '.join(given) or 'no outputs'}: give any of {', '.join(_OUTPUTS)}")
    differences = []
    for name, rows in given.items():
        own, limit = computed[name], limits[name]
        if own is None or own.shape != rows.shape or rows.dtype.kind != "f":
            shape = "none" if own is None else f"float {list(own.shape)}"
            targets = " for the rows of targets alone" if name == "hidden" and targets_alone else ""
            raise BundleError(
                f"{source} gives {name} as {rows.dtype} {list(rows.shape)}, and the encoder gives {shape}{targets}"
            )
        measured = min(largest_differences(own, rows))
        if limit is None or not measured <= limit:
            raise BundleError(
                f"{name} of the encoder differs by {measured:.2e} from {source}, more than {limit:g}: correct the "
                "configuration or the weights"
            )
        differences.append(f"{measured:.1e} {name} (limit {limit:g})")
    return f"largest difference from {source}: {', '.join(differences)}"
