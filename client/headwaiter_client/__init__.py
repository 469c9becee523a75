"""Calls a Headwaiter server.

with Client("localhost:50051") as client:
    encoding = client.encode(["a first text", "a second"])
encoding.pooled  # [2, width]
"""

from headwaiter_client._attention import Attention
from headwaiter_client._connection import TlsConfig
from headwaiter_client._options import RequestOptions
from headwaiter_client._results import Encoding, ModelRef, SequenceEncoding, Timings
from headwaiter_client._retry import RetryPolicy
from headwaiter_client._tensors import Int8Array
from headwaiter_client.aio import AsyncClient
from headwaiter_client.client import Client
from headwaiter_client.errors import (
    Cancelled,
    DeadlineExceeded,
    HeadwaiterError,
    InferenceFailed,
    InvalidInput,
    MessageTooLarge,
    ModelChanged,
    ModelNotFound,
    Overloaded,
    SequenceTooLong,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)
from headwaiter_client.fake import AsyncFakeEncoder, FakeEncoder

__all__ = [
    "AsyncClient",
    "AsyncFakeEncoder",
    "Attention",
    "Cancelled",
    "Client",
    "DeadlineExceeded",
    "Encoding",
    "FakeEncoder",
    "HeadwaiterError",
    "InferenceFailed",
    "Int8Array",
    "InvalidInput",
    "MessageTooLarge",
    "ModelChanged",
    "ModelNotFound",
    "ModelRef",
    "Overloaded",
    "RequestOptions",
    "RetryPolicy",
    "SequenceEncoding",
    "SequenceTooLong",
    "Timings",
    "TlsConfig",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
]
