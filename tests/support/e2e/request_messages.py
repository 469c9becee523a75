"""Messages and features for bad requests. The client itself would refuse or split some of the messages."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto import encoder_pb2 as pb


def tokens(ids: Sequence[int], lengths: Sequence[int], dtype: pb.DataType = pb.DATA_TYPE_INT32) -> pb.TokenSequences:
    return pb.TokenSequences(dtype=dtype, data=np.array(ids, "<i4").tobytes(), lengths=lengths)


def token_request(*args: Any) -> pb.EncodeRequest:
    return pb.EncodeRequest(tokens=tokens(*args))


def with_options(**fields: Any) -> pb.EncodeRequest:
    """Return a valid request of two token ids, with further fields."""
    return pb.EncodeRequest(tokens=tokens([1, 2], [2]), **fields)


def with_output(**fields: Any) -> pb.EncodeRequest:
    """Return a valid request of two token ids, with output options."""
    return with_options(output=pb.OutputOptions(**fields))


def feature_request(dtype: pb.DataType, lengths: Sequence[int]) -> pb.EncodeRequest:
    """Return a request with 24 bytes of data: one row of width 6 in float32."""
    return pb.EncodeRequest(features=pb.FeatureSequences(dtype=dtype, width=6, data=bytes(24), lengths=lengths))


def features(value: float, width: int = 6) -> NDArray[np.float32]:
    """Return three rows of ones, with another value at position 1."""
    rows = np.ones((3, width), np.float32)
    rows[1, 2] = value
    return rows
