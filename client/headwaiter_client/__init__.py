"""Client of Headwaiter servers.

with Client("localhost:50051") as client:
    encoding = client.encode(["a first text", "a second"])
encoding.pooled  # [2, width]
"""

from headwaiter_client.aio import AsyncClient
from headwaiter_client.answers import Answer, best_answer
from headwaiter_client.calls.attend import Attention, AttentionVectors
from headwaiter_client.calls.batches import Batch
from headwaiter_client.calls.classify import Classification, LabelScore, RankedDocument, Ranking
from headwaiter_client.calls.models import ModelDescription, ModelRef, ModelVersion, Task
from headwaiter_client.calls.options import ClassifyOptions, DefaultOptions, RequestOptions, TokenizeOptions
from headwaiter_client.calls.results import Encoding, SequenceEncoding, Timings
from headwaiter_client.calls.tensors import Int8Array
from headwaiter_client.calls.tokenize import Tokenization
from headwaiter_client.client import Client
from headwaiter_client.errors import ModelChanged, OutputMissing
from headwaiter_client.images import patches
from headwaiter_client.late_interaction import max_sim
from headwaiter_client.sounds import sound_rows
from headwaiter_client.targets import source_and_target
from headwaiter_client.testing import AsyncFakeEncoder, FakeEncoder
from headwaiter_client.transport.connection import TlsConfig
from headwaiter_client.transport.retries import RetryPolicy
from headwaiter_proto.rules.errors import (
    Cancelled,
    DeadlineExceeded,
    DeviceFailed,
    HeadwaiterError,
    InferenceFailed,
    InvalidInput,
    MessageTooLarge,
    ModelNotFound,
    Overloaded,
    SequenceTooLong,
    Starting,
    Transient,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)

__all__ = [
    "Answer",
    "AsyncClient",
    "AsyncFakeEncoder",
    "Attention",
    "AttentionVectors",
    "Batch",
    "Cancelled",
    "Classification",
    "ClassifyOptions",
    "Client",
    "DeadlineExceeded",
    "DefaultOptions",
    "DeviceFailed",
    "Encoding",
    "FakeEncoder",
    "HeadwaiterError",
    "InferenceFailed",
    "Int8Array",
    "InvalidInput",
    "LabelScore",
    "MessageTooLarge",
    "ModelChanged",
    "ModelDescription",
    "ModelNotFound",
    "ModelRef",
    "ModelVersion",
    "OutputMissing",
    "Overloaded",
    "RankedDocument",
    "Ranking",
    "RequestOptions",
    "RetryPolicy",
    "SequenceEncoding",
    "SequenceTooLong",
    "Starting",
    "Task",
    "Timings",
    "TlsConfig",
    "Tokenization",
    "TokenizeOptions",
    "Transient",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "best_answer",
    "max_sim",
    "patches",
    "sound_rows",
    "source_and_target",
]
