"""Read the golden inputs of a bundle, and compare them with the manifest."""

from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto.encoder_pb2 import POOLING_NONE
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_proto.rules.images import prefix_rows
from headwaiter_proto.rules.outputs import hidden_width
from headwaiter_proto.rules.pooling import POOLINGS, normalize_pooled, pool
from headwaiter_proto.rules.target import divided, takes_target
from headwaiter_server.runtime.errors import BundleRefused, one_line
from headwaiter_server.runtime.graph import GraphOutputs
from headwaiter_server.runtime.numeric_tolerances import largest_differences
from headwaiter_server.runtime.results_digest import summary

# The golden inputs of the largest models of images have about 300 MB.
_MAX_BYTES = 1 << 30
# The export writes all hidden rows of sequences of up to 1,024 tokens, and sometimes a longer sequence.
_COMPLETE_TOKENS = 1024
# Far above the rounding errors of a pooling, and far below the difference between two poolings.
_POOLING_ERROR = 1e-2


@dataclass(frozen=True, eq=False)
class Golden:
    """The golden inputs of a bundle, with PyTorch's float32 outputs for them.

    Attributes:
        sequences: as in `pack`.
        outputs: pooled [B, width], of unit length if the model normalizes; hidden [T, width], or fewer rows; logits.
            None for those that the model does not give.
        hidden_rows: which of the T rows `outputs.hidden` holds; None for all rows.
        summary: what stands for the outputs of all golden inputs in `results_digest`.
    """

    sequences: list[NDArray[np.generic]]
    outputs: GraphOutputs
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
        return Golden(
            list(compress(self.sequences, kept)),
            GraphOutputs(
                None if pooled is None else pooled[kept],
                None if hidden is None else hidden[row_kept[rows]],
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
        return _read_golden(path, manifest)
    except BundleRefused:
        raise
    except KeyError as error:
        raise BundleRefused(
            f"lacks the array {error}, which it has by vocabulary_size, token_types, pooling and head of the manifest"
        ) from None
    except Exception as error:  # noqa: BLE001 - zipfile and numpy raise many types
        raise BundleRefused(f"cannot be read with this manifest ({one_line(error)})") from None


def _read_golden(path: Path, manifest: Manifest) -> Golden:
    with ZipFile(path) as archive:
        if (size_bytes := sum(member.file_size for member in archive.infolist())) > _MAX_BYTES:
            raise BundleRefused(f"has arrays of {size_bytes:,} bytes, and at most {_MAX_BYTES:,} are allowed")
    with np.load(path, allow_pickle=False) as stored:
        arrays: dict[str, NDArray[Any]] = dict(stored)
    rows = arrays["input_ids" if manifest.vocabulary_size else "features"]
    lengths = arrays["lengths"]
    tokens, ends = len(rows), np.cumsum(lengths)
    checked = len(arrays["hidden_rows"]) if "hidden_rows" in arrays else tokens
    wanted: dict[str, tuple[int, ...]] = {"lengths": (len(lengths),)}
    if not manifest.without_rows:
        wanted["hidden"] = (checked, hidden_width(manifest))
    if manifest.token_types:
        wanted["token_type_ids"] = (tokens,)
    if manifest.pooling != POOLING_NONE:
        wanted["pooled"] = (len(lengths), manifest.width)
    if manifest.HasField("head"):
        wanted["logits"] = (tokens if manifest.head.per_token else len(lengths), len(manifest.head.labels))
    for name, shape in wanted.items():
        if arrays[name].shape != shape:
            raise BundleRefused(
                f"has the array {name} of the shape {list(arrays[name].shape)}, and by its lengths and by width, "
                f"hidden_width, token_types and head of the manifest the shape is {list(shape)}"
            )
    _check_lengths(lengths, tokens, manifest)
    if manifest.token_types:
        rows = np.stack([rows, arrays["token_type_ids"]], axis=1)
    if takes_target(manifest):
        rows = divided(rows, ends.tolist(), manifest.target.start_id if manifest.vocabulary_size else None)
    sequences = np.split(rows, ends[:-1])
    if manifest.feature_width:
        _check_zeros(sequences, manifest)
    logits = None
    if manifest.HasField("head"):
        logits = np.split(arrays["logits"], ends[:-1] if manifest.head.per_token else np.arange(1, len(lengths)))
    golden = Golden(
        sequences, GraphOutputs(arrays.get("pooled"), arrays.get("hidden"), logits), arrays.get("hidden_rows")
    )
    if golden.outputs.pooled is not None and not manifest.fixed_pooling:
        _check_pooling(golden.up_to(_COMPLETE_TOKENS), manifest)
    return replace(golden, summary=_summary(golden, has_row_modules=manifest.row_width > 0))


def _summary(golden: Golden, *, has_row_modules: bool) -> str:
    vectors = [] if golden.outputs.pooled is None else [golden.outputs.pooled]
    short = golden.up_to(_COMPLETE_TOKENS)
    if short.outputs.hidden is not None and (has_row_modules or not vectors):
        # The last rows of the sequences whose rows are all there.
        vectors.append(short.outputs.hidden[np.cumsum([len(sequence) for sequence in short.sequences]) - 1])
    return summary(vectors, golden.outputs.logits)


def _check_lengths(lengths: NDArray[Any], tokens: int, manifest: Manifest) -> None:
    """Check that there are the shortest sequences, and the longest or one of 1,024 tokens.

    The golden inputs of a model with `fixed_length` have other lengths too, so they cannot prove this field.
    """
    shortest, longest = int(lengths.min()), int(lengths.max())
    least, most = max(1, manifest.min_tokens), manifest.max_tokens
    if lengths.sum() != tokens:
        raise BundleRefused(f"has sequences of {lengths.sum():,} tokens together, and {tokens:,} ids or features")
    if longest < min(most, _COMPLETE_TOKENS):
        raise BundleRefused(f"has sequences of at most {longest:,} tokens, and max_tokens of the manifest is {most:,}")
    if shortest != least:
        raise BundleRefused(
            f"has sequences of at least {shortest:,} tokens, and min_tokens of the manifest is {least:,}"
        )


def _check_zeros(sequences: list[NDArray[Any]], manifest: Manifest) -> None:
    """Check the number of rows of zeros with which sequences of features begin."""
    wanted = prefix_rows(manifest)
    for rows in sequences:
        zeros = next(iter(np.flatnonzero(rows.any(axis=1))), len(rows))
        if zeros != min(wanted, len(rows)):
            raise BundleRefused(
                f"has a sequence that begins with {zeros} rows of zeros, and class_row and prefix_rows of the manifest "
                f"stand for {wanted}"
            )


def _check_pooling(golden: Golden, manifest: Manifest) -> None:
    """Check that the pooled vectors are what the manifest's pooling makes of the hidden rows.

    With `fixed_pooling`, modules may have changed the pooled vectors, and no request can use another pooling.
    """
    rows, vectors = golden.outputs.hidden, golden.outputs.pooled
    assert rows is not None
    assert vectors is not None
    parts = np.split(rows, np.cumsum([len(sequence) for sequence in golden.sequences])[:-1])
    problem = manifest.pooling not in POOLINGS or manifest.width != hidden_width(manifest)
    if not problem and golden.sequences:
        pooled = np.stack([pool(part, manifest.pooling) for part in parts])
        expected = normalize_pooled(pooled, normalized=manifest.normalized)
        problem = not largest_differences(vectors, expected)[1] <= _POOLING_ERROR
    if problem:
        raise BundleRefused("has pooled vectors that pooling, normalized and fixed_pooling of the manifest do not give")
