"""Calls a Headwaiter server.

with Client("localhost:50051") as client:
    encoding = client.encode(["a first text", "a second"])
encoding.pooled  # [2, width]
"""

from headwaiter_client._attention import Attention
from headwaiter_client._connection import TlsConfig
from headwaiter_client._core import Encoding, ModelRef, RequestOptions, Timings
from headwaiter_client._retry import RetryPolicy
from headwaiter_client.aio import AsyncClient
from headwaiter_client.client import Client
from headwaiter_client.errors import (
    Cancelled,
    DeadlineExceeded,
    HeadwaiterError,
    InferenceFailed,
    InvalidInput,
    MessageTooLarge,
    ModelNotFound,
    Overloaded,
    SequenceTooLong,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)

__all__ = [
    "AsyncClient",
    "Attention",
    "Cancelled",
    "Client",
    "DeadlineExceeded",
    "Encoding",
    "HeadwaiterError",
    "InferenceFailed",
    "InvalidInput",
    "MessageTooLarge",
    "ModelNotFound",
    "ModelRef",
    "Overloaded",
    "RequestOptions",
    "RetryPolicy",
    "SequenceTooLong",
    "Timings",
    "TlsConfig",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
]
