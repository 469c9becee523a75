"""Bad requests and the facts of the errors that answer them, from a server and from the client's FakeEncoder."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import grpc
import numpy as np
from google.protobuf.message import Message

from headwaiter_client import Client, HeadwaiterError, InvalidInput, MessageTooLarge, ModelNotFound, SequenceTooLong
from headwaiter_proto import encoder_pb2 as pb
from tests.support.checkpoints import VOCABULARY
from tests.support.e2e.request_messages import (
    feature_request,
    features,
    token_request,
    tokens,
    with_options,
    with_output,
)

NOT_A_MESSAGE = b"\xff\xff\xff"

# A call of the client, or, if the client would refuse the request itself, the message to send.
Request = Callable[[Client], object] | Message | bytes


@dataclass(frozen=True)
class BadRequest:
    """A bad request and the facts of its error.

    Attributes:
        name: the name of the test.
        request: the request.
        in_message: words of the error's message, besides the sequence, `limit` and `actual`.
        sentence: the whole message of a server, for the most frequent errors.
        error: the error's class in the client.
        code: the gRPC code.
        method: the method that receives the request, if the request is a message.
        sequence: as in HeadwaiterError.
        field: as in HeadwaiterError.
        limit: as in HeadwaiterError.
        actual: as in HeadwaiterError.
        refused_by_client: whether the client refuses the message, because gRPC would refuse it without details.
    """

    name: str
    request: Request
    in_message: tuple[str, ...] = ()
    sentence: str | None = None
    error: type[HeadwaiterError] = InvalidInput
    code: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT
    method: str = "Encode"
    sequence: int | None = None
    field: str | None = None
    limit: int | None = None
    actual: int | None = None
    refused_by_client: bool = False

    def check(self, error: HeadwaiterError) -> None:
        """Check that an error has the facts, and that its message shows them."""
        assert type(error) is self.error
        facts = (error.sequence, error.field, error.limit, error.actual)
        assert facts == (self.sequence, self.field, self.limit, self.actual)
        values = [str(value) for value in (self.limit, self.actual) if value is not None]
        if self.sequence is not None:
            assert str(error).startswith(f"sequence {self.sequence} ")
        for value in (*values, *self.in_message):
            assert value in str(error)


LARGEST_ID = len(VOCABULARY) - 1
UNKNOWN_DTYPE = cast(pb.DataType, 99)

# The server accepts at most 8 sequences, 96 tokens and 8 KiB in a request. The model has 2 layers, 4 heads, width 32,
# and takes at most 64 tokens, or 32 of a text.
TO_TEXT_MODEL = (
    BadRequest(
        "no input",
        pb.EncodeRequest(),
        ("no input",),
        sentence="the request has no input: send tokens, features, texts or images",
    ),
    BadRequest("no texts", pb.EncodeRequest(texts=pb.Texts()), ("no sequences",)),
    BadRequest(
        "no token sequences",
        token_request([], []),
        ("no sequences",),
        sentence="the request has no sequences: send at least one",
    ),
    BadRequest("an empty sequence", lambda c: c.encode_tokens([[1], []]), sequence=1, field="tokens.lengths"),
    BadRequest(
        "a sequence over the maximum",
        lambda c: c.encode_tokens([[1], [1] * 65]),
        sentence="sequence 1 has 65 tokens; the model accepts at most 64: shorten or split it",
        error=SequenceTooLong,
        sequence=1,
        field="tokens.lengths",
        limit=64,
        actual=65,
    ),
    BadRequest(
        "an id below 0",
        lambda c: c.encode_tokens([[1], [2, -1]]),
        ("position 1",),
        sentence="sequence 1 has id -1 at position 1; the model's ids are 0 to 70: use the model's own tokenizer",
        sequence=1,
        field="tokens.data",
        limit=LARGEST_ID,
        actual=-1,
    ),
    BadRequest(
        "an id beyond the vocabulary",
        lambda c: c.encode_tokens([[LARGEST_ID + 1]]),
        ("position 0",),
        sequence=0,
        field="tokens.data",
        limit=LARGEST_ID,
        actual=LARGEST_ID + 1,
    ),
    BadRequest(
        "an id beyond 32 bits",
        lambda c: c.encode_tokens([[1 << 40]]),
        ("position 0",),
        sequence=0,
        field="tokens.data",
        limit=LARGEST_ID,
        actual=1 << 40,
    ),
    BadRequest(
        "fewer ids than lengths",
        token_request([1, 2, 3], [2, 2]),
        ("4 × 1 values of 4 bytes",),
        sentence=(
            "tokens.data has 12 bytes; the lengths add up to 4 × 1 values of 4 bytes, which take 16: "
            "correct the lengths or the data"
        ),
        field="tokens.data",
        limit=16,
        actual=12,
    ),
    BadRequest("more ids than lengths", token_request([1, 2], [1]), field="tokens.data", limit=4, actual=8),
    BadRequest(
        "half an id",
        pb.EncodeRequest(tokens=pb.TokenSequences(dtype=pb.DATA_TYPE_INT32, data=b"123", lengths=[1])),
        field="tokens.data",
        limit=4,
        actual=3,
    ),
    BadRequest(
        "ids that are floats",
        token_request([1], [1], pb.DATA_TYPE_FLOAT32),
        ("FLOAT32", "INT32", "INT64"),
        field="tokens.dtype",
    ),
    BadRequest(
        "ids without a type", token_request([1], [1], pb.DATA_TYPE_UNSPECIFIED), ("UNSPECIFIED",), field="tokens.dtype"
    ),
    BadRequest("ids of an unknown type", token_request([1], [1], UNKNOWN_DTYPE), ("99",), field="tokens.dtype"),
    BadRequest(
        "a text over the maximum",
        lambda c: c.encode(["bread", "bread " * 31]),
        sentence=(
            "sequence 1 has 33 tokens; the model accepts texts of at most 32 tokens, special tokens and "
            "prompt included: shorten, split or truncate it"
        ),
        error=SequenceTooLong,
        sequence=1,
        field="texts",
        limit=32,
        actual=33,
    ),
    BadRequest("features", lambda c: c.encode_features([features(1)]), ("token ids or texts",), field="features"),
    BadRequest("bytes that are not a message", NOT_A_MESSAGE, ("headwaiter.v1.EncodeRequest",)),
    BadRequest("bytes to GetModel", NOT_A_MESSAGE, ("headwaiter.v1.GetModelRequest",), method="GetModel"),
    BadRequest(
        "an unknown model",
        lambda c: c.encode(["bread"], model="huge"),
        ("'huge'", "'tiny-text'"),
        sentence="the server has no model 'huge': send one of 'tiny-text'",
        error=ModelNotFound,
        code=grpc.StatusCode.NOT_FOUND,
        field="model",
    ),
    BadRequest(
        "the description of an unknown model",
        lambda c: c.model("huge"),
        ("'huge'", "'tiny-text'"),
        error=ModelNotFound,
        code=grpc.StatusCode.NOT_FOUND,
        field="model",
    ),
    BadRequest(
        "a message over the size limit",
        lambda c: c.encode(["bread " * 2000]),
        error=MessageTooLarge,
        code=grpc.StatusCode.RESOURCE_EXHAUSTED,
        sequence=0,
        limit=8192,
        actual=12048,
        refused_by_client=True,
    ),
    BadRequest(
        "too many sequences",
        token_request([1] * 9, [1] * 9),
        ("sequences",),
        sentence="the request has 9 sequences; the server accepts at most 8: split the request",
        limit=8,
        actual=9,
    ),
    BadRequest(
        "too many texts", pb.EncodeRequest(texts=pb.Texts(values=["bread"] * 9)), ("sequences",), limit=8, actual=9
    ),
    BadRequest(
        "too many tokens",
        token_request([1] * 98, [49] * 2),
        ("tokens",),
        sentence="the request has 98 tokens; the server accepts at most 96: split the request",
        limit=96,
        actual=98,
    ),
    BadRequest(
        "texts of too many tokens",
        pb.EncodeRequest(texts=pb.Texts(values=["rain " * 30] * 4)),
        ("tokens",),
        limit=96,
        actual=128,
    ),
    BadRequest("an unknown pooling", with_output(pooling=99), ("99", "MEAN"), field="output.pooling"),
    BadRequest(
        "a pooling of other models",
        with_output(pooling=pb.POOLING_CONCATENATED),
        ("CONCATENATED", "MEAN"),
        field="output.pooling",
    ),
    BadRequest("too many dimensions", with_output(dimensions=33), field="output.dimensions", limit=32, actual=33),
    BadRequest("offsets of tokens", with_output(offsets=True), ("tokens",), field="output.offsets"),
    BadRequest(
        "a reply of int32", with_output(dtype=pb.DATA_TYPE_INT32), ("INT32", "FLOAT32", "INT8"), field="output.dtype"
    ),
    BadRequest("truncation of tokens", with_options(truncation=pb.TRUNCATION_RIGHT), ("tokens",), field="truncation"),
    BadRequest("an unknown truncation", with_options(truncation=9), ("9", "LEFT"), field="truncation"),
    BadRequest("an unknown priority", with_options(priority=9), ("9", "BULK"), field="priority"),
    BadRequest(
        "an unknown prompt",
        pb.EncodeRequest(texts=pb.Texts(values=["bread"], prompt="question")),
        ("'question'", "'query'", "'passage'"),
        sentence=(
            "texts.prompt: the model has no prompt 'question' (its prompts: 'query', 'passage', "
            "'document'): name one of them, or leave the field empty"
        ),
        field="texts.prompt",
    ),
    BadRequest(
        "a partial request with a bad option", with_options(partial=True, truncation=9), ("9",), field="truncation"
    ),
    BadRequest(
        "attention weights of two sequences",
        pb.AttendRequest(tokens=tokens([1, 2], [1, 1])),
        method="Attend",
        field="tokens.lengths",
        limit=1,
        actual=2,
    ),
    BadRequest("attention weights without an input", pb.AttendRequest(), ("no input",), method="Attend"),
    BadRequest("bytes to Attend", NOT_A_MESSAGE, ("headwaiter.v1.AttendRequest",), method="Attend"),
    BadRequest(
        "a layer too high",
        lambda c: c.attend("bread", layers=[2]),
        sentence="layers contains the index 2; valid indices are 0 to 1: choose among them",
        field="layers",
        limit=1,
        actual=2,
    ),
    BadRequest("a head too high", lambda c: c.attend("bread", heads=[9]), field="heads", limit=3, actual=9),
    BadRequest("a query beyond the text", lambda c: c.attend("bread", query=3), field="query", limit=2, actual=3),
    BadRequest(
        "no id in a stream", pb.EncodeRequest(), ("request_id", "empty"), method="EncodeStream", field="request_id"
    ),
    BadRequest("bytes to a stream", NOT_A_MESSAGE, ("headwaiter.v1.EncodeRequest",), method="EncodeStream"),
)

# The model takes at most 48 feature rows of width 6.
TO_FEATURE_MODEL = (
    BadRequest(
        "a NaN",
        lambda c: c.encode_features([features(1), features(np.nan)]),
        ("position 1",),
        sequence=1,
        field="features.data",
    ),
    BadRequest(
        "an infinity",
        lambda c: c.encode_features([features(-np.inf)]),
        ("position 1",),
        sequence=0,
        field="features.data",
    ),
    BadRequest(
        "a number beyond float32",
        lambda c: c.encode_features([np.full((2, 6), 1e39)]),
        ("position 0",),
        sequence=0,
        field="features.data",
    ),
    BadRequest(
        "a wrong width",
        lambda c: c.encode_features([features(1, width=5)]),
        sentence="features.width is 5; the model takes features of width 6: send rows of that width",
        field="features.width",
        limit=6,
        actual=5,
    ),
    BadRequest(
        "features that are integers",
        feature_request(pb.DATA_TYPE_INT32, [1]),
        ("INT32", "FLOAT32", "FLOAT16"),
        field="features.dtype",
    ),
    BadRequest(
        "fewer features than lengths",
        feature_request(pb.DATA_TYPE_FLOAT32, [2]),
        ("2 × 6 values of 4 bytes",),
        field="features.data",
        limit=48,
        actual=24,
    ),
    BadRequest(
        "no sequences",
        pb.EncodeRequest(features=pb.FeatureSequences(dtype=pb.DATA_TYPE_FLOAT32)),
        ("no sequences",),
    ),
    BadRequest(
        "an empty sequence", lambda c: c.encode_features([np.ones((0, 6))]), sequence=0, field="features.lengths"
    ),
    BadRequest(
        "a sequence over the maximum",
        lambda c: c.encode_features([np.ones((49, 6))]),
        error=SequenceTooLong,
        sequence=0,
        field="features.lengths",
        limit=48,
        actual=49,
    ),
    BadRequest("token ids", lambda c: c.encode_tokens([[1]]), ("width 6",), field="tokens"),
    BadRequest(
        "texts",
        lambda c: c.encode(["bread"]),
        ("tokenizer",),
        sentence="texts: the model has no tokenizer: send token ids or features",
        field="texts",
    ),
)
