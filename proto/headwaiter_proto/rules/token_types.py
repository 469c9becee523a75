"""Read and check the token types of a request."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_proto.rules.errors import Failures, InvalidInput


def read_types(
    message: pb.TokenSequences, ends: Sequence[int], manifest: Manifest, failures: Failures
) -> NDArray[np.uint8] | None:
    """Return the type of each token of a request, [tokens], as a view of the message; None if all have type 0.

    Add the error of each sequence with an unknown type to `failures`.

    Raises:
        InvalidInput: the number of types is not the number of tokens.
    """
    if not message.types:
        return None
    types = np.frombuffer(message.types, np.uint8)
    if len(types) != ends[-1]:
        raise InvalidInput(
            f"tokens.types has {len(types)} bytes; the request has {ends[-1]} tokens: send one byte for each, or none",
            field="tokens.types",
            limit=ends[-1],
            actual=len(types),
        )
    largest = max(1, manifest.token_types) - 1
    wrong = np.flatnonzero(types > largest)
    sequences, firsts = np.unique(np.searchsorted(ends, wrong, side="right"), return_index=True)
    for index, row in zip(sequences.tolist(), wrong[firsts].tolist(), strict=True):
        failures.add(
            InvalidInput(
                f"has token type {types[row]}; the model's types are 0 to {largest}: use the model's own tokenizer",
                sequence=index,
                field="tokens.types",
                limit=largest,
                actual=int(types[row]),
            )
        )
    return types


def with_types(ids: NDArray[np.generic], types: NDArray[np.generic] | None, manifest: Manifest) -> NDArray[np.generic]:
    """Return token ids [n] in the form that the graph takes: with their types, int64 [n, 2], if the model has types.

    All tokens have type 0 if `types` is None.
    """
    if not manifest.token_types:
        return ids
    return np.stack([ids, np.zeros_like(ids) if types is None else types], axis=1).astype(np.int64, copy=False)


def without_types(sequence: NDArray[np.generic]) -> NDArray[np.generic]:
    """Return the token ids [n] of what `with_types` returns."""
    return sequence if sequence.ndim == 1 else sequence[:, 0]
