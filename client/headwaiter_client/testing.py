"""A server without a network, for the tests of those who call one."""

import hashlib
import re
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from headwaiter_client import testing_checks as _fake_checks
from headwaiter_client.calls import steps
from headwaiter_client.errors import (
    BY_REASON,
    Cancelled,
    HeadwaiterError,
    InvalidInput,
    ModelNotFound,
    Unimplemented,
)
from headwaiter_client.transport.connection import checked_timeout_s
from headwaiter_client.transport.interface import CancelScope
from headwaiter_proto import encoder_pb2 as pb

_SPECIAL_TOKENS = 2
_LAYERS, _HEADS = 2, 3
_PROMPTS = [pb.Prompt(name=name, text=f"{name}: ", tokens=2) for name in ("query", "passage")]
_MAX_MESSAGE_BYTES = 1 << 24
_MAX_ATTEND_BYTES = 1 << 26
_TEXT_BYTES_PER_TOKEN = 16
_REASONS = {kind: name for name, kind in BY_REASON.items()}
_POOLINGS: dict[pb.Pooling, Callable[[NDArray[Any]], NDArray[Any]]] = {
    pb.POOLING_UNSPECIFIED: lambda hidden: hidden.mean(axis=0),
    pb.POOLING_MEAN: lambda hidden: hidden.mean(axis=0),
    pb.POOLING_MAX: lambda hidden: hidden.max(axis=0),
    pb.POOLING_CLS: lambda hidden: hidden[0],
    pb.POOLING_LAST: lambda hidden: hidden[-1],
}

_DTYPES = {
    pb.DATA_TYPE_FLOAT32: "<f4",
    pb.DATA_TYPE_FLOAT16: "<f2",
    pb.DATA_TYPE_INT8: "i1",
    pb.DATA_TYPE_INT32: "<i4",
    pb.DATA_TYPE_INT64: "<i8",
}
_Request = TypeVar("_Request", pb.EncodeRequest, pb.AttendRequest)


class _Token(NamedTuple):
    key: object
    begin: int
    end: int


class FakeEncoder:
    """A transport that answers what is sent like a server: `Client(transport=FakeEncoder())`.

    Its vectors are made up, but the same each time: equal sequences have equal vectors, texts that share words have
    vectors near each other. A text's tokens are its words and two special ones. It has the prompts "query" and
    "passage".

    Args:
        width: of its vectors.
        vocabulary_size: token ids are below it.
        feature_width: of the feature vectors it takes.
        max_tokens: most tokens of a sequence.
        max_request_sequences: most sequences of a request.
        max_request_tokens: most tokens of a request.
        model: name of its only model.

    Attributes:
        requests: the Encode and Attend messages it was sent.
        errors: to raise from the next calls, one each; append to it.
        serving: what it says of its health.
    """

    def __init__(
        self,
        *,
        width: int = 8,
        vocabulary_size: int = 30522,
        feature_width: int = 8,
        max_tokens: int = 512,
        max_request_sequences: int = 4096,
        max_request_tokens: int = 65536,
        model: str = "fake",
    ) -> None:
        self.requests: list[pb.EncodeRequest | pb.AttendRequest] = []
        self.errors: deque[HeadwaiterError] = deque()
        self.serving = True
        self._closed = False
        self._vectors: dict[object, NDArray[np.float32]] = {}
        digest = hashlib.sha256(model.encode()).hexdigest()
        ref = pb.ModelRef(name=model, digest=digest, precision=pb.PRECISION_FP32)
        self._description = pb.GetModelResponse(
            model=ref,
            takes_tokens=True,
            takes_features=True,
            takes_texts=True,
            vocabulary_size=vocabulary_size,
            feature_width=feature_width,
            max_tokens=max_tokens,
            max_text_tokens=max_tokens,
            width=width,
            layers=_LAYERS,
            heads=_HEADS,
            pooling=pb.POOLING_MEAN,
            normalized=True,
            limits=pb.RequestLimits(
                max_sequences=max_request_sequences,
                max_tokens=max_request_tokens,
                max_message_bytes=_MAX_MESSAGE_BYTES,
                max_attend_bytes=_MAX_ATTEND_BYTES,
                max_text_bytes=min(max_request_tokens * _TEXT_BYTES_PER_TOKEN, _MAX_MESSAGE_BYTES),
            ),
            min_tokens=1,
            attends=True,
            prompts=_PROMPTS,
            poolings=[pooling for pooling in _POOLINGS if pooling],
        )

    def unary(
        self,
        method: str,
        request: bytes,
        timeout_s: float,
        request_id: str | None = None,
        flight: CancelScope | None = None,
    ) -> bytes:
        """Answers a call, at once."""
        checked_timeout_s(timeout_s, request_id)
        if self._closed:
            raise Cancelled("the client is closed", request_id=request_id)
        if self.errors:
            error = cast("object", self.errors.popleft())
            if not isinstance(error, HeadwaiterError):
                raise TypeError(f"errors holds {error!r}; append errors, such as Overloaded('the queue is full')")
            raise error
        if method == steps.HEALTH_METHOD:
            return steps.HEALTH_SERVING if self.serving else b""
        match method.rpartition("/")[2]:
            case "Encode":
                return self._encode(self._noted(pb.EncodeRequest.FromString(request))).SerializeToString()
            case "Attend":
                return self._attend(self._noted(pb.AttendRequest.FromString(request))).SerializeToString()
            case "ListModels":
                return pb.ListModelsResponse(models=[self._description.model]).SerializeToString()
            case "GetModel":
                self._check_model(pb.GetModelRequest.FromString(request).name)
                return self._description.SerializeToString()
            case _:
                raise Unimplemented(f"there is no method {method}", request_id=request_id)

    def close(self) -> None:
        """Ends later calls as `Cancelled`."""
        self._closed = True

    def _noted(self, request: _Request) -> _Request:
        self.requests.append(request)
        _fake_checks.check_id(request.request_id)
        self._check_model(request.model)
        return request

    def _check_model(self, name: str) -> None:
        if name not in ("", self._description.model.name):
            raise ModelNotFound(f"there is no model {name!r} here", field="model")

    def _encode(self, request: pb.EncodeRequest) -> pb.EncodeResponse:
        output = request.output
        _fake_checks.check_options(request, self._description.width)
        reply = pb.EncodeResponse(request_id=request.request_id, model=self._description.model)
        all_hidden, all_pooled = [], []
        for index, tokens in enumerate(self._sequences(request)):
            try:
                tokens = self._fitted(index, tokens, request, reply)
            except InvalidInput as error:
                if not request.partial:
                    raise
                reply.failures.append(_failure(index, error))
                tokens = []
            reply.lengths.append(len(tokens))
            if output.offsets:
                reply.offsets.add(begin=[one.begin for one in tokens], end=[one.end for one in tokens])
            all_hidden.append(self._hidden(tokens))
            all_pooled.append(self._pooled(all_hidden[-1], output))
        if output.pooled or not output.hidden:
            _fill(reply.pooled, np.stack(all_pooled), output.dtype)
        if output.hidden:
            _fill(reply.hidden, np.concatenate(all_hidden), output.hidden_dtype or output.dtype)
        return reply

    def _sequences(self, request: pb.EncodeRequest | pb.AttendRequest) -> list[list[_Token]]:
        """Returns the tokens of each sequence, whether the model takes them or not."""
        texts = request.texts
        if request.WhichOneof("input") == "texts":
            prompt = _fake_checks.checked_prompt(texts.prompt, self._description.prompts)
            sequences = [_words(text, prompt) for text in texts.values]
        else:
            _fake_checks.check_width(request.features, self._description.feature_width)
            sequences = _rows(request.tokens if request.HasField("tokens") else request.features)
        _fake_checks.check_amounts(len(sequences), texts.ByteSize(), sum(map(len, sequences)), self._description.limits)
        return sequences

    def _fitted(
        self, index: int, tokens: list[_Token], request: pb.EncodeRequest, reply: pb.EncodeResponse
    ) -> list[_Token]:
        """Returns the tokens that the model takes of a sequence."""
        most = self._description.max_tokens
        if len(tokens) <= most or request.truncation not in (pb.TRUNCATION_LEFT, pb.TRUNCATION_RIGHT):
            self._check_tokens(index, tokens, request)
            return tokens
        reply.truncated.add(sequence=index, original_tokens=len(tokens))
        words = tokens[1:-1]
        kept = (
            words[: most - _SPECIAL_TOKENS]
            if request.truncation == pb.TRUNCATION_RIGHT
            else words[_SPECIAL_TOKENS - most :]
        )
        return [tokens[0], *kept, tokens[-1]]

    def _check_tokens(self, index: int, tokens: list[_Token], request: pb.EncodeRequest | pb.AttendRequest) -> None:
        keys = [one.key for one in tokens]
        _fake_checks.check_sequence(index, keys, request.WhichOneof("input"), self._description)

    def _hidden(self, tokens: Sequence[_Token]) -> NDArray[np.float32]:
        width = self._description.width
        return np.array([self._vector(one.key) for one in tokens], np.float32).reshape(len(tokens), width)

    def _vector(self, key: object) -> NDArray[np.float32]:
        if key not in self._vectors:
            seed = int.from_bytes(hashlib.sha256(repr(key).encode()).digest())
            self._vectors[key] = np.random.default_rng(seed).standard_normal(self._description.width, np.float32)
        return self._vectors[key]

    def _pooled(self, hidden: NDArray[np.float32], output: pb.OutputOptions) -> NDArray[np.float32]:
        dimensions = output.dimensions or self._description.width
        if not len(hidden):
            return np.zeros(dimensions, np.float32)
        pooled = _POOLINGS[output.pooling](hidden)[:dimensions]
        normalize = output.normalize if output.HasField("normalize") else True
        return pooled / np.linalg.norm(pooled) if normalize else pooled

    def _attend(self, request: pb.AttendRequest) -> pb.AttendResponse:
        """Answers that every token looks at all tokens alike."""
        (tokens,) = self._sequences(request)
        self._check_tokens(0, tokens, request)
        layers = _fake_checks.chosen("layers", request.layers, _LAYERS)
        heads = _fake_checks.chosen("heads", request.heads, _HEADS)
        _fake_checks.check_index("query is", request.query, "the sequence's positions", len(tokens))
        _fake_checks.check_weights(len(layers), _HEADS, len(tokens), self._description.limits.max_attend_bytes)
        reply = pb.AttendResponse(request_id=request.request_id, model=self._description.model)
        if request.HasField("texts"):
            reply.tokens.extend(str(one.key) for one in tokens)
        shape = (len(layers), len(heads), len(tokens), len(tokens))
        _fill(reply.weights, np.full(shape, 1 / len(tokens), np.float32), pb.DATA_TYPE_FLOAT32)
        if request.HasField("query"):
            context = self._hidden(tokens).mean(axis=0)
            _fill(reply.context, np.broadcast_to(context, (*shape[:2], len(context))), pb.DATA_TYPE_FLOAT32)
        return reply


class AsyncFakeEncoder:
    """The same for asyncio: `AsyncClient(transport=AsyncFakeEncoder(fake))`.

    Args:
        fake: what answers.
    """

    def __init__(self, fake: FakeEncoder) -> None:
        self._fake = fake

    async def unary(self, method: str, request: bytes, timeout_s: float, request_id: str | None = None) -> bytes:
        """Answers a call; see `FakeEncoder.unary`."""
        return self._fake.unary(method, request, timeout_s, request_id)

    async def close(self) -> None:
        """Ends later calls as `Cancelled`."""
        self._fake.close()


def _words(text: str, prompt: str) -> list[_Token]:
    """Cuts a text at its blanks; one without words has no tokens."""
    words = [_Token(found.group(), *found.span()) for found in re.finditer(r"\S+", text)]
    start = [_Token(word, 0, 0) for word in prompt.split()]
    return [_Token("[CLS]", 0, 0), *start, *words, _Token("[SEP]", 0, 0)] if words else []


def _rows(packed: pb.TokenSequences | pb.FeatureSequences) -> list[list[_Token]]:
    values = np.frombuffer(packed.data, _DTYPES[packed.dtype])
    # Of no rows, any width.
    rows = map(tuple, values.reshape(sum(packed.lengths) or 1, -1).tolist())
    keys = iter(values.tolist()) if isinstance(packed, pb.TokenSequences) else rows
    return [[_Token(next(keys), 0, 0) for _ in range(length)] for length in packed.lengths]


def _failure(index: int, error: HeadwaiterError) -> pb.Failure:
    known = {name: getattr(error, name) for name in ("sequence", "field", "limit", "actual")}
    metadata = {name: str(value) for name, value in known.items() if value is not None}
    return pb.Failure(sequence=index, reason=_REASONS[type(error)], message=str(error), metadata=metadata)


def _fill(tensor: pb.Tensor, values: NDArray[Any], dtype: pb.DataType) -> None:
    tensor.dtype = dtype or pb.DATA_TYPE_FLOAT32
    tensor.shape.extend(values.shape)
    if dtype == pb.DATA_TYPE_INT8:
        scales = np.maximum(np.abs(values).max(axis=-1, initial=0), np.finfo(np.float32).tiny) / 127
        tensor.row_scales.extend(scales.tolist())
        values = np.rint(values / scales[:, np.newaxis])
    tensor.data = values.astype(_DTYPES[tensor.dtype]).tobytes()
