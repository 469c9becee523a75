"""Check the sequences of a model of images: as many rows as its grid has places, after a class row of zeros."""

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_proto.rules.errors import Failures, InvalidInput, SequenceTooLong


def min_tokens(manifest: Manifest) -> int:
    """Return the fewest tokens of a sequence that the model accepts."""
    return manifest.max_tokens if manifest.fixed_length else max(1, manifest.min_tokens)


def wrong_fixed_length(index: int, length: int, path: str, manifest: Manifest) -> InvalidInput:
    """Return the error of a sequence whose length is not the model's only length."""
    tokens = manifest.max_tokens
    parts = f"a row of zeros and the {tokens - 1} patches of an image" if manifest.class_row else f"{tokens} rows"
    kind = SequenceTooLong if length > tokens else InvalidInput
    return kind(
        f"sequence {index} has length {length}; the model accepts only {tokens}, because each position is a place in "
        f"its grid: send {parts} of the model's own size",
        sequence=index,
        field=path,
        limit=tokens,
        actual=length,
    )


def check_class_rows(rows: NDArray[Any], ends: Sequence[int], failures: Failures) -> None:
    """Refuse the sequences whose first row is not zeros."""
    for index, begin in enumerate([0, *ends[:-1]]):
        if index not in failures and rows[begin].any():
            failures.add(
                InvalidInput(
                    f"sequence {index} has values other than 0 at position 0, where the model adds its class token: "
                    "send a row of zeros before the patches",
                    sequence=index,
                    field="features.data",
                )
            )
