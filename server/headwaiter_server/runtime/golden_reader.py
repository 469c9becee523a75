"""Read the golden inputs of a bundle, and check that they can reveal a wrong graph or manifest."""

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto.encoder_pb2 import POOLING_NONE, Pooling
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_proto.rules.images import prefix_rows
from headwaiter_proto.rules.outputs import hidden_width
from headwaiter_proto.rules.pooling import POOLINGS, POOLINGS_OF_GRAPHS, pool
from headwaiter_proto.rules.target import divided, takes_target
from headwaiter_server.runtime.errors import BundleRefused, one_line
from headwaiter_server.runtime.graph import Outputs
from headwaiter_server.runtime.numeric_tolerances import normalize_pooled
from headwaiter_server.runtime.results_digest import summary

# The golden inputs of the largest models of images have about 300 MB.
_MAX_BYTES = 1 << 30
# The export writes 32 sequences of up to 1,024 tokens, and sometimes a longer one.
_MIN_SEQUENCES = 16
_COMPLETE_TOKENS = 1024
# The list of members at the end of the file, and the record after the list, which has this signature. `numpy.savez`
# writes a list of less than 1 kB.
_END_BYTES = 22
_END_SIGNATURE = b"PK\5\6"
_LARGE_ARCHIVE_SIGNATURE = b"PK\6\7"
_LARGE_ARCHIVE_BYTES = 20
_MAX_LIST_BYTES = 4096
# Far above the rounding errors of a pooling, and far below the difference between two poolings.
_POOLING_ERROR = 1e-2


@dataclass(frozen=True, eq=False)
class Golden:
    """The golden inputs of a bundle, with PyTorch's float32 outputs for them.

    Attributes:
        sequences: as in `pack`.
        outputs: pooled [B, width], of unit length if the model normalizes; hidden [T, width], or fewer rows; logits.
        hidden_rows: which of the T rows `outputs.hidden` holds; None for all rows.
        summary: what stands for the outputs of all golden inputs in `results_digest`.
    """

    sequences: list[NDArray[np.generic]]
    outputs: Outputs
    hidden_rows: NDArray[np.int64] | None = None
    summary: str = ""

    def up_to(self, tokens: int) -> "Golden":
        """Return the golden inputs that have at most this many tokens each."""
        kept = np.array([len(sequence) <= tokens for sequence in self.sequences])
        if kept.all():
            return self
        row_kept = np.repeat(kept, [len(sequence) for sequence in self.sequences])
        rows = np.arange(len(row_kept)) if self.hidden_rows is None else self.hidden_rows
        checked = rows[row_kept[rows]]
        pooled, hidden, logits = self.outputs.pooled, self.outputs.hidden, self.outputs.logits
        assert hidden is not None
        return Golden(
            list(compress(self.sequences, kept)),
            Outputs(
                None if pooled is None else pooled[kept],
                hidden[row_kept[rows]],
                None if logits is None else list(compress(logits, kept)),
            ),
            None if self.hidden_rows is None else np.cumsum(row_kept)[checked] - 1,
            self.summary,
        )


def read_golden(path: Path, manifest: Manifest) -> Golden:
    """Read golden inputs, and check them against the manifest.

    Raises:
        BundleRefused: the message begins with what is wrong in the file, and does not name the file.
    """
    try:
        arrays = _read_arrays(path, manifest)
    except BundleRefused:
        raise
    except Exception as error:  # noqa: BLE001 - zipfile and numpy raise many types
        raise BundleRefused(f"cannot be read ({one_line(error)})") from None
    lengths = arrays["lengths"]
    _check_shapes(arrays, manifest)
    _check_lengths(lengths, manifest)
    rows = arrays["input_ids" if manifest.vocabulary_size else "features"]
    if manifest.token_types:
        rows = np.stack([rows, arrays["token_type_ids"]], axis=1)
    ends = np.cumsum(lengths)[:-1]
    if takes_target(manifest):
        start_id = manifest.target.start_id if manifest.vocabulary_size else None
        try:
            rows = divided(rows, np.cumsum(lengths).tolist(), start_id)
        except ValueError as error:
            raise BundleRefused(f"has sequences without a source or a target ({one_line(error)})") from None
    sequences = np.split(rows, ends)
    _check_values(arrays, sequences, manifest)
    logits = None
    if manifest.HasField("head"):
        logits = np.split(arrays["logits"], ends if manifest.head.per_token else np.arange(1, len(lengths)))
    golden = Golden(sequences, Outputs(arrays.get("pooled"), arrays["hidden"], logits), arrays.get("hidden_rows"))
    _check_pooling(golden, manifest)
    return replace(golden, summary=_summary(golden, has_row_modules=manifest.row_width > 0))


def _summary(golden: Golden, *, has_row_modules: bool) -> str:
    vectors = [] if golden.outputs.pooled is None else [golden.outputs.pooled]
    if has_row_modules or not vectors:
        # The last rows of the sequences whose rows are all there.
        short = golden.up_to(_COMPLETE_TOKENS)
        assert short.outputs.hidden is not None
        vectors.append(short.outputs.hidden[np.cumsum([len(sequence) for sequence in short.sequences]) - 1])
    return summary(vectors, golden.outputs.logits)


def _names(manifest: Manifest) -> tuple[set[str], set[str]]:
    """Return the names of the arrays that the file must have, and of those that it may have."""
    needed = {"lengths", "hidden", "input_ids" if manifest.vocabulary_size else "features"}
    needed |= {"token_type_ids"} if manifest.token_types else set()
    needed |= {"pooled"} if manifest.pooling != POOLING_NONE else set()
    needed |= {"logits"} if manifest.HasField("head") else set()
    return needed, {*needed, "hidden_rows"}


def _read_arrays(path: Path, manifest: Manifest) -> dict[str, NDArray[Any]]:
    """Read the arrays; take no more memory than the file has bytes, whatever the file says about itself."""
    if path.stat().st_size > _MAX_BYTES:
        raise BundleRefused(f"has more than {_MAX_BYTES:,} bytes")
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _END_BYTES - _LARGE_ARCHIVE_BYTES))
        tail = file.read()
    end = tail[-_END_BYTES:]
    if not end.startswith(_END_SIGNATURE) or tail.startswith(_LARGE_ARCHIVE_SIGNATURE):
        raise BundleRefused("is not an archive that numpy.savez writes")
    if int.from_bytes(end[12:16], "little") > _MAX_LIST_BYTES:
        raise BundleRefused("has too many arrays")
    needed, known = _names(manifest)
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        names = [member.filename.removesuffix(".npy") for member in members]
        if not needed <= set(names) <= known or len(set(names)) < len(names):
            raise BundleRefused(f"has the arrays {sorted(names)}, and by the manifest it has {sorted(needed)}")
        if sum(member.file_size for member in members) > path.stat().st_size or any(
            member.compress_type != zipfile.ZIP_STORED for member in members
        ):
            raise BundleRefused("is compressed")
        return {name: _read_array(archive.read(member)) for name, member in zip(names, members, strict=True)}


def _read_array(content: bytes) -> NDArray[Any]:
    """Return the array of a .npy file, as a view of its bytes."""
    file = BytesIO(content)
    if np.lib.format.read_magic(file) != (1, 0):
        raise BundleRefused("has an array of another format than numpy.savez writes")
    shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(file)
    if dtype.hasobject or fortran_order:
        raise BundleRefused(f"has an array of the type {dtype}, or in Fortran's order")
    array: NDArray[Any] = np.frombuffer(content, dtype, offset=file.tell()).reshape(shape)
    return array


def _check_shapes(arrays: Mapping[str, NDArray[Any]], manifest: Manifest) -> None:
    """Check the type and the shape of each array."""
    lengths = arrays["lengths"]
    if lengths.dtype != np.int32 or lengths.ndim != 1 or not len(lengths) or int(lengths.min()) < 1:
        raise BundleRefused("has no list of lengths of at least one token each")
    sequences, tokens = len(lengths), int(lengths.sum(dtype=np.int64))
    checked = arrays["hidden_rows"].size if "hidden_rows" in arrays else tokens
    head_rows = tokens if manifest.head.per_token else sequences
    wanted: dict[str, tuple[type[np.generic], tuple[int, ...]]] = {
        "lengths": (np.int32, (sequences,)),
        "input_ids": (np.int64, (tokens,)),
        "token_type_ids": (np.int64, (tokens,)),
        "features": (np.float32, (tokens, manifest.feature_width)),
        "hidden": (np.float32, (checked, hidden_width(manifest))),
        "hidden_rows": (np.int64, (checked,)),
        "pooled": (np.float32, (sequences, manifest.width)),
        "logits": (np.float32, (head_rows, len(manifest.head.labels))),
    }
    for name, array in arrays.items():
        dtype, shape = wanted[name]
        if array.dtype != np.dtype(dtype) or array.shape != shape:
            raise BundleRefused(
                f"has the array {name} of {array.dtype} {list(array.shape)}, and by the manifest and the lengths it is "
                f"{np.dtype(dtype)} {list(shape)}"
            )


def _check_lengths(lengths: NDArray[Any], manifest: Manifest) -> None:
    """Check that there are many sequences, among them the shortest, and the longest or one of 1,024 tokens.

    The golden inputs of a model with `fixed_length` have other lengths too, so they cannot prove this field.
    """
    shortest, longest = int(lengths.min()), int(lengths.max())
    least, most = max(1, manifest.min_tokens), manifest.max_tokens
    if len(lengths) < _MIN_SEQUENCES:
        raise BundleRefused(f"has {len(lengths)} sequences, which is too few to check a graph")
    if longest < min(most, _COMPLETE_TOKENS):
        raise BundleRefused(f"has sequences of at most {longest:,} tokens, and max_tokens of the manifest is {most:,}")
    if shortest != least:
        raise BundleRefused(
            f"has sequences of at least {shortest:,} tokens, and min_tokens of the manifest is {least:,}"
        )


def _check_values(arrays: Mapping[str, NDArray[Any]], sequences: list[NDArray[np.generic]], manifest: Manifest) -> None:
    """Check that ids, types and rows are in their ranges, and numbers are finite."""
    lengths = np.array([len(each) for each in sequences])
    tokens = int(lengths.sum())
    limits = {"input_ids": manifest.vocabulary_size, "token_type_ids": manifest.token_types, "hidden_rows": tokens}
    for name, array in arrays.items():
        if name in limits and len(array) and not 0 <= int(array.min()) <= int(array.max()) < limits[name]:
            raise BundleRefused(
                f"has numbers from {array.min()} to {array.max()} in {name}, and the manifest allows 0 to "
                f"{limits[name] - 1}"
            )
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise BundleRefused(f"has a NaN or an infinity in {name}")
    if (rows := arrays.get("hidden_rows")) is not None:
        is_short = np.repeat(lengths <= _COMPLETE_TOKENS, lengths)
        if (np.diff(rows) <= 0).any() or is_short[rows].sum() < is_short.sum():
            raise BundleRefused("lacks rows in hidden_rows, or has no rising order there")
    if "features" in arrays:
        zeros = np.array([next(iter(np.flatnonzero(each.any(axis=1))), len(each)) for each in sequences])
        if (zeros != np.minimum(prefix_rows(manifest), lengths)).any():
            raise BundleRefused(
                f"begins its sequences with {zeros.max()} rows of zeros, and class_row and prefix_rows of the manifest "
                f"stand for {prefix_rows(manifest)}"
            )


def _check_pooling(golden: Golden, manifest: Manifest) -> None:
    """Check that the pooled vectors are what the manifest's pooling makes of the hidden rows.

    With `fixed_pooling`, modules may have changed the pooled vectors. If so, nothing shows the pooling, and no request
    can use another one. Vectors that are the plain result of another pooling are refused, unless only graphs compute
    the pooling.
    """
    if golden.outputs.pooled is None or manifest.pooling in POOLINGS_OF_GRAPHS:
        return
    if manifest.width != hidden_width(manifest):
        if manifest.fixed_pooling:
            return
        raise BundleRefused(
            "has pooled vectors and hidden rows of other widths, and fixed_pooling of the manifest is false"
        )
    short = golden.up_to(_COMPLETE_TOKENS)
    rows, vectors = short.outputs.hidden, short.outputs.pooled
    assert rows is not None
    assert vectors is not None
    if not short.sequences:
        return
    parts = np.split(rows, np.cumsum([len(sequence) for sequence in short.sequences])[:-1])
    if _is_pooled(parts, vectors, manifest.pooling, normalized=manifest.normalized):
        return
    if not manifest.fixed_pooling:
        raise BundleRefused("has pooled vectors that pooling and normalized of the manifest do not give")
    unit = normalize_pooled(vectors, normalized=True)
    # A module may have scaled them, and MEAN and MEAN_SQRT_LEN have the same direction.
    if _is_pooled(parts, unit, manifest.pooling, normalized=True):
        return
    for pooling in POOLINGS:
        if _is_pooled(parts, unit, pooling, normalized=True):
            raise BundleRefused(f"has vectors of {Pooling.Name(pooling)}, and pooling of the manifest is another one")


def _is_pooled(
    parts: list[NDArray[np.generic]], vectors: NDArray[np.float32], pooling: Pooling, *, normalized: bool
) -> bool:
    """Return whether a pooling gives these vectors for the hidden rows of each sequence; false if only graphs pool."""
    if pooling not in POOLINGS:
        return False
    expected = normalize_pooled(np.stack([pool(part, pooling) for part in parts]), normalized=normalized)
    scale = max(1e-30, float(np.abs(expected).max()))
    return float(np.abs(expected - vectors).max()) <= _POOLING_ERROR * scale
