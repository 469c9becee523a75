"""Divide the sequences of a model with an encoder and a decoder in source and target: see TargetFormat."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_proto.rules.errors import Failures, InvalidInput


def takes_target(manifest: Manifest) -> bool:
    """Return whether the sequences of a model have a source and a target."""
    return manifest.HasField("target")


def with_parts(ids: NDArray[Any], ends: Sequence[int], start_id: int, failures: Failures) -> NDArray[np.int64]:
    """Return token ids [n] in the form that the graph takes: with 1 for a token of a target and 0 for others, [n, 2].

    `ends` are the ends of the sequences. Add the error of each sequence without a source or a target to `failures`.
    """
    is_target = np.zeros(len(ids), np.int64)
    starts = np.flatnonzero(ids == start_id)
    for index, (begin, end) in enumerate(pairwise([0, *ends])):
        first = int(np.searchsorted(starts, begin))
        target = int(starts[first]) if first < len(starts) else end
        is_target[target:end] = 1
        if begin < end and not begin < target < end:
            problem = "begins with" if target == begin else "lacks"
            failures.add(
                InvalidInput(
                    f"{problem} token id {start_id}, which begins the target: send the ids of the source, then "
                    f"{start_id}, then the other ids of the target",
                    sequence=index,
                    field="tokens.data",
                )
            )
    return np.stack([ids, is_target], axis=1).astype(np.int64, copy=False)


def check_parts(rows: NDArray[Any], ends: Sequence[int], failures: Failures) -> None:
    """Add the error of each sequence of features [n, feature_width] without a source or a target to `failures`."""
    for index, (begin, end) in enumerate(pairwise([0, *ends])):
        part = rows[begin:end, -1]
        divided = len(part) and part[0] == 0 and part[-1] == 1
        if len(part) and not (divided and ((part == 0) | (part == 1)).all() and (np.diff(part) >= 0).all()):
            failures.add(
                InvalidInput(
                    "has last values in its rows that do not divide it in source and target: send 0 in each row of "
                    "the source, then 1 in each row of the target",
                    sequence=index,
                    field="features.data",
                )
            )


def divided(rows: NDArray[Any], ends: Sequence[int], start_id: int | None) -> NDArray[Any]:
    """Return token ids as `with_parts` does, or rows of features, without a start id, as they are.

    Raises:
        ValueError: a sequence has no source or no target.
    """
    failures = Failures(keep=True)
    if start_id is None:
        check_parts(rows, ends, failures)
    else:
        rows = with_parts(rows, ends, start_id, failures)
    for error in failures.by_sequence.values():
        raise ValueError(str(error))
    return rows


def target_rows(sequences: Sequence[NDArray[np.generic]], manifest: Manifest) -> list[NDArray[np.bool_]] | None:
    """Return whether each row of each sequence belongs to a target, bool [n]; None for a model without targets.

    The sequences are token ids as `with_parts` returns them, or rows of features.
    """
    return [np.asarray(each[:, -1] != 0) for each in sequences] if takes_target(manifest) else None
