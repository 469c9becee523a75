"""Check the sequences of a model of images: rows of zeros, then as many rows as its grid has places."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from numpy.typing import NDArray

from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_proto.rules.errors import Failures, InvalidInput, SequenceTooLong


def min_tokens(manifest: Manifest) -> int:
    """Return the fewest tokens of a sequence that the model accepts."""
    return manifest.max_tokens if manifest.fixed_length else max(1, manifest.min_tokens)


def prefix_rows(manifest: Manifest) -> int:
    """Return the number of rows of zeros at the start of each sequence."""
    return manifest.prefix_rows or int(manifest.class_row)


def wrong_fixed_length(index: int, length: int, path: str, manifest: Manifest) -> InvalidInput:
    """Return the error of a sequence whose length is not the model's only length."""
    tokens = manifest.max_tokens
    zeros = prefix_rows(manifest)
    parts = f"{_rows_of_zeros(zeros)} and the {tokens - zeros} patches of an image" if zeros else f"{tokens} rows"
    kind = SequenceTooLong if length > tokens else InvalidInput
    return kind(
        f"sequence {index} has length {length}; the model accepts only {tokens}, because each position is a place in "
        f"its grid: send {parts} of the model's own size",
        sequence=index,
        field=path,
        limit=tokens,
        actual=length,
    )


def check_prefix_rows(rows: NDArray[Any], ends: Sequence[int], zeros: int, failures: Failures) -> None:
    """Refuse the sequences whose first rows are not zeros."""
    for index, (begin, end) in enumerate(pairwise([0, *ends])):
        wrong = rows[begin : min(begin + zeros, end)].any(axis=1)
        if index not in failures and wrong.any():
            failures.add(
                InvalidInput(
                    f"sequence {index} has values other than 0 at position {wrong.argmax()}, where the model adds a "
                    f"token of its own: send {_rows_of_zeros(zeros)} before the patches",
                    sequence=index,
                    field="features.data",
                )
            )


def _rows_of_zeros(count: int) -> str:
    return "a row of zeros" if count == 1 else f"{count} rows of zeros"
