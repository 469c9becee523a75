"""Bad requests: what is wrong with each, and the answer it must get."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import grpc
import numpy as np
from google.protobuf.message import Message
from numpy.typing import NDArray

from headwaiter_client import (
    Client,
    HeadwaiterError,
    InvalidInput,
    MessageTooLarge,
    ModelNotFound,
    SequenceTooLong,
)
from headwaiter_proto import encoder_pb2 as pb
from tests.checkpoints import VOCABULARY

INVALID = grpc.StatusCode.INVALID_ARGUMENT
NO_MESSAGE = b"\xff\xff\xff"

# What a caller does with the client, or, where the client would refuse by itself, the message on the wire.
Request = Callable[[Client], object] | Message | bytes


@dataclass(frozen=True)
class Bad:
    """A bad request and what it is answered with.

    Attributes:
        why: its name.
        request: to send.
        error: its class in the client.
        says: part of the sentence.
        code: on the wire.
        method: of the Encoder, for messages.
    """

    why: str
    request: Request
    error: type[HeadwaiterError]
    says: str
    code: grpc.StatusCode = INVALID
    method: str = "Encode"


def tokens(ids: Sequence[int], lengths: Sequence[int], dtype: pb.DataType = pb.DATA_TYPE_INT32) -> pb.TokenSequences:
    return pb.TokenSequences(dtype=dtype, data=np.array(ids, "<i4").tobytes(), lengths=lengths)


def with_options(**fields: Any) -> pb.EncodeRequest:
    return pb.EncodeRequest(tokens=tokens([1, 2], [2]), **fields)


def with_output(**fields: Any) -> pb.EncodeRequest:
    return with_options(output=pb.OutputOptions(**fields))


def features(value: float, width: int = 6) -> NDArray[np.float32]:
    rows = np.ones((3, width), np.float32)
    rows[1, 2] = value
    return rows


FAR = len(VOCABULARY)
MALFORMED = "the message is not a headwaiter.v1."

# To a server that takes at most 8 sequences, 96 tokens and 8 KiB a request.
TO_TEXT_MODEL = (
    Bad("no input", pb.EncodeRequest(), InvalidInput, "give it tokens, features or texts"),
    Bad("no texts", lambda c: c.encode([]), InvalidInput, "no sequences: send at least one"),
    Bad("no token sequences", lambda c: c.encode_tokens([]), InvalidInput, "no sequences: send at least one"),
    Bad("a sequence of no tokens", lambda c: c.encode_tokens([[1], []]), InvalidInput, "sequence 1 is empty"),
    Bad(
        "a sequence over the maximum",
        lambda c: c.encode_tokens([[1], [1] * 65]),
        SequenceTooLong,
        "sequence 1 has 65 tokens, and the model takes at most 64",
    ),
    Bad(
        "an id below 0",
        lambda c: c.encode_tokens([[1], [2, -1]]),
        InvalidInput,
        f"sequence 1 has id -1 at position 1, and ids are 0 to {FAR - 1}",
    ),
    Bad("an id beyond the vocabulary", lambda c: c.encode_tokens([[FAR]]), InvalidInput, f"sequence 0 has id {FAR}"),
    Bad("an id beyond 32 bits", lambda c: c.encode_tokens([[1 << 40]]), InvalidInput, f"has id {1 << 40}"),
    Bad(
        "lengths that promise too much",
        pb.EncodeRequest(tokens=tokens([1, 2, 3], [2, 2])),
        InvalidInput,
        "lengths add up to 4 × 1 values of 4 bytes, 16 bytes in all, but data has 12",
    ),
    Bad("lengths that promise too little", pb.EncodeRequest(tokens=tokens([1, 2], [1])), InvalidInput, "data has 8"),
    Bad(
        "half an id",
        pb.EncodeRequest(tokens=pb.TokenSequences(dtype=pb.DATA_TYPE_INT32, data=b"123", lengths=[1])),
        InvalidInput,
        "data has 3",
    ),
    Bad(
        "ids that are floats",
        pb.EncodeRequest(tokens=tokens([1], [1], pb.DATA_TYPE_FLOAT32)),
        InvalidInput,
        "tokens.dtype: ids are INT32 or INT64, not FLOAT32",
    ),
    Bad(
        "ids of no type",
        pb.EncodeRequest(tokens=tokens([1], [1], pb.DATA_TYPE_UNSPECIFIED)),
        InvalidInput,
        "not UNSPECIFIED",
    ),
    Bad(
        "ids of an unknown type",
        pb.EncodeRequest(tokens=tokens([1], [1], cast(pb.DataType, 99))),
        InvalidInput,
        "not 99",
    ),
    Bad("an empty text", lambda c: c.encode(["bread", ""]), InvalidInput, "texts.values[1] is empty"),
    Bad("a blank text", lambda c: c.encode(["\t \n"]), InvalidInput, "texts.values[0] is empty"),
    Bad(
        "a text too long",
        lambda c: c.encode(["bread", "bread " * 31]),
        SequenceTooLong,
        "texts.values[1] has 33 tokens, and the model takes texts of at most 32",
    ),
    Bad("features", lambda c: c.encode_features([features(1)]), InvalidInput, "takes token ids or texts, not features"),
    Bad("bytes that are no message", NO_MESSAGE, InvalidInput, f"{MALFORMED}EncodeRequest"),
    Bad("bytes to GetModel", NO_MESSAGE, InvalidInput, f"{MALFORMED}GetModelRequest", method="GetModel"),
    Bad(
        "an unknown model",
        lambda c: c.encode(["bread"], model="huge"),
        ModelNotFound,
        "no model 'huge' here: this server holds 'tiny-text'",
        grpc.StatusCode.NOT_FOUND,
    ),
    Bad(
        "the description of an unknown model",
        lambda c: c.model("huge"),
        ModelNotFound,
        "this server holds 'tiny-text'",
        grpc.StatusCode.NOT_FOUND,
    ),
    Bad(
        "a message over the size limit",
        lambda c: c.encode(["bread " * 2000]),
        MessageTooLarge,
        "larger than max",
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    ),
    Bad(
        "too many sequences",
        pb.EncodeRequest(tokens=tokens([1] * 9, [1] * 9)),
        InvalidInput,
        "9 sequences, and the server takes 8",
    ),
    Bad(
        "too many texts",
        pb.EncodeRequest(texts=pb.Texts(values=["bread"] * 9)),
        InvalidInput,
        "9 sequences, and the server takes 8",
    ),
    Bad(
        "too many tokens",
        pb.EncodeRequest(tokens=tokens([1] * 98, [49] * 2)),
        InvalidInput,
        "98 tokens, and the server takes 96",
    ),
    Bad(
        "texts of too many tokens",
        pb.EncodeRequest(texts=pb.Texts(values=["rain " * 30] * 4)),
        InvalidInput,
        "128 tokens, and the server",
    ),
    Bad("an unknown pooling", with_output(pooling=9), InvalidInput, "output.pooling: MEAN, CLS, MAX, LAST or NONE"),
    Bad(
        "more dimensions",
        with_output(dimensions=33),
        InvalidInput,
        "output.dimensions is 33, and the model's vectors have 32",
    ),
    Bad("offsets of tokens", with_output(offsets=True), InvalidInput, "output.offsets: that is for texts"),
    Bad("an int32 answer", with_output(dtype=pb.DATA_TYPE_INT32), InvalidInput, "replies are FLOAT32, FLOAT16 or INT8"),
    Bad(
        "truncated tokens",
        with_options(truncation=pb.TRUNCATION_RIGHT),
        InvalidInput,
        "truncation: that is for texts; leave the field out",
    ),
    Bad("a truncation", with_options(truncation=9), InvalidInput, "truncation: ERROR, LEFT or RIGHT"),
    Bad("a priority", with_options(priority=9), InvalidInput, "priority: INTERACTIVE or BULK"),
    Bad(
        "an unknown prompt",
        pb.EncodeRequest(texts=pb.Texts(values=["bread"], prompt="question")),
        InvalidInput,
        "texts.prompt: the model has no prompt 'question'; it has 'query', 'passage', 'document'",
    ),
    Bad("a bad whole", with_options(partial=True, truncation=9), InvalidInput, "truncation: ERROR, LEFT or RIGHT"),
    Bad(
        "attention to two sequences",
        pb.AttendRequest(tokens=tokens([1, 2], [1, 1])),
        InvalidInput,
        "tokens.lengths: the request has 2 sequences, and Attend takes exactly one",
        method="Attend",
    ),
    Bad("attention to nothing", pb.AttendRequest(), InvalidInput, "give it tokens, features or texts", method="Attend"),
    Bad("bytes to Attend", NO_MESSAGE, InvalidInput, f"{MALFORMED}AttendRequest", method="Attend"),
    Bad("a layer too high", lambda c: c.attend("bread", layers=[2]), InvalidInput, "the model's layers are 0 to 1"),
    Bad("a head too high", lambda c: c.attend("bread", heads=[9]), InvalidInput, "the model's heads are 0 to 3"),
    Bad("a query beyond the text", lambda c: c.attend("bread", query=3), InvalidInput, "positions are 0 to 2"),
    Bad("no id in a stream", pb.EncodeRequest(), InvalidInput, "a stream needs one", method="EncodeStream"),
    Bad("bytes to a stream", NO_MESSAGE, InvalidInput, f"{MALFORMED}EncodeRequest", method="EncodeStream"),
)

TO_FEATURE_MODEL = (
    Bad("NaN", lambda c: c.encode_features([features(1), features(np.nan)]), InvalidInput, "sequence 1 has a NaN"),
    Bad("infinity", lambda c: c.encode_features([features(-np.inf)]), InvalidInput, "an infinity at position 1"),
    Bad("beyond float32", lambda c: c.encode_features([np.full((2, 6), 1e39)]), InvalidInput, "must be finite"),
    Bad(
        "a wrong width",
        lambda c: c.encode_features([features(1, width=5)]),
        InvalidInput,
        "features.width is 5, and the model takes features of width 6",
    ),
    Bad(
        "features that are integers",
        pb.EncodeRequest(features=pb.FeatureSequences(dtype=pb.DATA_TYPE_INT32, width=6, data=bytes(24), lengths=[1])),
        InvalidInput,
        "features.dtype: features are FLOAT32 or FLOAT16, not INT32",
    ),
    Bad(
        "lengths that do not add up",
        pb.EncodeRequest(
            features=pb.FeatureSequences(dtype=pb.DATA_TYPE_FLOAT32, width=6, data=bytes(24), lengths=[2])
        ),
        InvalidInput,
        "lengths add up to 2 × 6 values of 4 bytes, 48 bytes in all, but data has 24",
    ),
    Bad("no sequences", lambda c: c.encode_features([]), InvalidInput, "the request has no sequences"),
    Bad("a sequence of none", lambda c: c.encode_features([np.ones((0, 6))]), InvalidInput, "sequence 0 is empty"),
    Bad(
        "a sequence over the maximum",
        lambda c: c.encode_features([np.ones((49, 6))]),
        SequenceTooLong,
        "sequence 0 has 49 tokens, and the model takes at most 48",
    ),
    Bad("token ids", lambda c: c.encode_tokens([[1]]), InvalidInput, "the model takes features of width 6, not token"),
    Bad("texts", lambda c: c.encode(["bread"]), InvalidInput, "the model has no tokenizer"),
)
