"""Which sequences may share a batch of a graph that pads them."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TypeVar

from headwaiter_proto.encoder_pb2 import ISOLATION_ONE_LENGTH, ISOLATION_ONE_SEQUENCE, Isolation

_Sequence = TypeVar("_Sequence")


def batches_of(
    sequences: Sequence[_Sequence], lengths: Sequence[int], isolation: Isolation
) -> Iterator[list[_Sequence]]:
    """Split a batch into parts that may run, without changing the order."""
    if isolation == ISOLATION_ONE_SEQUENCE:
        yield from ([each] for each in sequences)
    elif isolation == ISOLATION_ONE_LENGTH:
        for _, part in groupby(zip(lengths, sequences, strict=True), key=lambda each: each[0]):
            yield [sequence for _, sequence in part]
    else:
        yield [*sequences]
