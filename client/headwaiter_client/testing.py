"""A server without a network, for the tests of code that calls one."""

import hashlib
import re
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headwaiter_client.calls import steps
from headwaiter_client.errors import Cancelled, HeadwaiterError, Unimplemented
from headwaiter_client.transport.connection import checked_timeout_s
from headwaiter_client.transport.interface import CancelScope
from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import Graph, Manifest
from headwaiter_proto.rules import inputs, replies, requests
from headwaiter_proto.rules.attention_weights import select
from headwaiter_proto.rules.errors import Failures
from headwaiter_proto.rules.outputs import Output
from headwaiter_proto.rules.pooling import pool

_SPECIAL_TOKENS = 2
_PROMPTS = [pb.Prompt(name=name, text=f"{name}: ", tokens=2) for name in ("query", "passage")]
_MAX_MESSAGE_BYTES = 1 << 24
_MAX_ATTEND_BYTES = 1 << 26
_Request = TypeVar("_Request", pb.EncodeRequest, pb.AttendRequest)
_Rows = NDArray[np.float32]


class FakeEncoder:
    """A transport that checks and answers requests as a server does: `Client(transport=FakeEncoder())`.

    Its vectors are random but reproducible: equal sequences have equal vectors, and texts that share words have similar
    vectors. The tokens of a text are its words and two special tokens. The model has the prompts "query" and "passage".

    Args:
        width: width of its vectors.
        vocabulary_size: token ids are below this; 0 for a model that takes only features.
        feature_width: width of the feature rows; 0 for a model that takes only token ids and texts.
        max_tokens: most tokens of a sequence.
        max_text_tokens: most tokens of a text, special tokens included; by default `max_tokens`.
        max_request_sequences: most sequences of a request.
        max_request_tokens: most tokens of a request.
        model: name of its only model.
        layers: number of attention layers.
        heads: number of attention heads of a layer.
        vectors: answers in place of random vectors. It is called with each sequence, as a str without its prompt, an
            array of ids [n] or an array of feature rows [n, feature_width], and returns the pooled vector [width],
            which is also the hidden row of each token. Like a model's, it is scaled to unit length unless the call asks
            for `normalize=False`.

    Attributes:
        requests: the Encode and Attend messages that it received.
        errors: errors to raise from the next calls, one per call; append to it.
        serving: whether it reports itself as serving.
    """

    def __init__(
        self,
        *,
        width: int = 8,
        vocabulary_size: int = 30522,
        feature_width: int = 8,
        max_tokens: int = 512,
        max_text_tokens: int | None = None,
        max_request_sequences: int = 4096,
        max_request_tokens: int = 65536,
        model: str = "fake",
        layers: int = 2,
        heads: int = 3,
        vectors: Callable[[Any], ArrayLike] | None = None,
    ) -> None:
        self.requests: list[pb.EncodeRequest | pb.AttendRequest] = []
        self.errors: deque[HeadwaiterError] = deque()
        self.serving = True
        self._closed = False
        self._vectors = vectors
        self._token_vectors: dict[object, _Rows] = {}
        self._limits = requests.RequestLimits(
            max_request_sequences, max_request_tokens, _MAX_MESSAGE_BYTES, _MAX_ATTEND_BYTES
        )
        self._manifest = Manifest(
            name=model,
            vocabulary_size=vocabulary_size,
            feature_width=feature_width,
            max_tokens=max_tokens,
            max_text_tokens=(max_text_tokens or max_tokens) if vocabulary_size else 0,
            width=width,
            layers=layers,
            heads=heads,
            pooling=pb.POOLING_MEAN,
            normalized=True,
            attend=Graph(file="none"),
            prompts=_PROMPTS,
        )
        digest = hashlib.sha256(model.encode()).hexdigest()
        self._model_ref = pb.ModelRef(name=model, digest=digest, precision=pb.PRECISION_FP32)

    def unary(
        self,
        method: str,
        request: bytes,
        timeout_s: float,
        request_id: str | None = None,
        flight: CancelScope | None = None,
    ) -> bytes:
        """Answer a call immediately."""
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
                return self._encode(self._received(request, pb.EncodeRequest())).SerializeToString()
            case "Attend":
                return self._attend(self._received(request, pb.AttendRequest())).SerializeToString()
            case "ListModels":
                return pb.ListModelsResponse(models=[self._model_ref]).SerializeToString()
            case "GetModel":
                requests.check_model(requests.parse(request, pb.GetModelRequest()).name, self._manifest)
                description = replies.model_response(self._manifest, self._limits)
                description.model.CopyFrom(self._model_ref)
                return description.SerializeToString()
            case _:
                raise Unimplemented(f"there is no method {method}", request_id=request_id)

    def close(self) -> None:
        """Make later calls raise `Cancelled`."""
        self._closed = True

    def _received(self, raw: bytes, message: _Request) -> _Request:
        """Parse a request, and remember it."""
        request = requests.parse(raw, message)
        self.requests.append(request)
        requests.check_id(request.request_id)
        return request

    def _encode(self, request: pb.EncodeRequest) -> pb.EncodeResponse:
        output = requests.read_options(request, self._manifest)
        parsed = self._read_input(request)
        failures = parsed.failures.by_sequence
        rows = [self._rows(request, parsed, index) for index in range(len(parsed.sequences)) if index not in failures]
        pooled = self._pooled(rows, output) if output.pooled else None
        hidden = np.concatenate([np.empty((0, self._manifest.width), np.float32), *rows]) if output.hidden else None
        reply = replies.encode_response(parsed, output, pooled, hidden, failures)
        reply.request_id = request.request_id
        reply.model.CopyFrom(self._model_ref)
        return reply

    def _attend(self, request: pb.AttendRequest) -> pb.AttendResponse:
        """Answer that every token attends equally to all tokens."""
        requests.check_attend_request(request, self._manifest)
        parsed = self._read_input(request)
        (sequence,) = parsed.sequences
        n = len(sequence)
        layers, heads, query = select(request, n, self._manifest, self._limits.attend_bytes)
        weights = np.full((len(layers), len(heads), n, n), 1 / n, np.float32)
        context = None
        if query is not None:
            row = self._rows(request, parsed, 0).mean(axis=0)
            context = np.broadcast_to(row, (len(layers), len(heads), len(row)))
        tokens = sequence.tolist() if request.HasField("texts") else []
        reply = replies.attend_response(weights, context, tokens)
        reply.request_id = request.request_id
        reply.model.CopyFrom(self._model_ref)
        return reply

    def _read_input(self, request: pb.EncodeRequest | pb.AttendRequest) -> inputs.ParsedInput:
        """Return the sequences of a request; those of texts are arrays of words."""
        # An AttendRequest has the same inputs, but not these options.
        options = request if isinstance(request, pb.EncodeRequest) else pb.EncodeRequest()
        failures = Failures(keep=options.partial)
        if not request.HasField("texts"):
            return inputs.read_rows(request, self._manifest, self._limits, failures)
        prompt = inputs.read_prompt(request.texts, self._manifest, self._limits)
        truncates = options.truncation in (pb.TRUNCATION_LEFT, pb.TRUNCATION_RIGHT)
        most = self._manifest.max_text_tokens
        inputs.check_texts(request.texts.values, most, failures, truncates=truncates)
        tokens, offsets, truncated = [], [], {}
        for index, text in enumerate(request.texts.values):
            words, places = _tokenize(text, prompt.text)
            if len(words) > most and truncates:
                truncated[index] = len(words)
                kept = _kept(len(words), most, options.truncation)
                words, places = words[kept], places[kept]
            elif len(words) > most:
                failures.add(inputs.text_too_long(index, f"{len(words)} tokens", most, len(words)))
            if index in failures:
                words, places = words[:0], places[:0]
            tokens.append(words)
            offsets.append(places)
        parsed = inputs.read_tokenized(tokens, prompt, self._manifest, self._limits, failures)
        parsed.truncated = truncated
        parsed.offsets = offsets if options.output.offsets else None
        return parsed

    def _rows(self, request: pb.EncodeRequest | pb.AttendRequest, parsed: inputs.ParsedInput, index: int) -> _Rows:
        """Return the hidden rows [n, width] of a sequence."""
        sequence, width = parsed.sequences[index], self._manifest.width
        if self._vectors is None:
            keys = sequence.tolist() if sequence.ndim == 1 else map(tuple, sequence.tolist())
            return np.stack([self._token_vector(key) for key in keys])
        vector = np.asarray(self._vectors(request.texts.values[index] if request.HasField("texts") else sequence))
        if vector.shape != (width,):
            raise ValueError(
                f"vectors returned an array of shape {vector.shape} for sequence {index}: return a vector of {width} "
                "numbers, or pass another width to FakeEncoder"
            )
        return np.tile(vector.astype(np.float32), (len(sequence), 1))

    def _token_vector(self, key: object) -> _Rows:
        if key not in self._token_vectors:
            seed = int.from_bytes(hashlib.sha256(repr(key).encode()).digest())
            self._token_vectors[key] = np.random.default_rng(seed).standard_normal(self._manifest.width, np.float32)
        return self._token_vectors[key]

    def _pooled(self, rows: list[_Rows], output: Output) -> _Rows:
        """Return the pooled vectors [sequences, dimensions]."""
        vectors = np.array([pool(each, output.pooling) for each in rows], np.float32)
        vectors = vectors.reshape(len(rows), self._manifest.width)[:, : output.dimensions]
        if not output.normalized:
            return vectors
        unit: _Rows = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.float32(1e-12))
        return unit


class AsyncFakeEncoder:
    """A FakeEncoder for asyncio: `AsyncClient(transport=AsyncFakeEncoder(fake))`.

    Args:
        fake: the encoder that answers.
    """

    def __init__(self, fake: FakeEncoder) -> None:
        self._fake = fake

    async def unary(self, method: str, request: bytes, timeout_s: float, request_id: str | None = None) -> bytes:
        """Answer a call; see `FakeEncoder.unary`."""
        return self._fake.unary(method, request, timeout_s, request_id)

    async def close(self) -> None:
        """Make later calls raise `Cancelled`."""
        self._fake.close()


def _tokenize(text: str, prompt: str) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Split a text at its blanks, and return its tokens [n] and where they begin and end in the text [n, 2]."""
    words = [("[CLS]", 0, 0), *((word, 0, 0) for word in prompt.split())]
    words += [(found.group(), *found.span()) for found in re.finditer(r"\S+", text)]
    words.append(("[SEP]", 0, 0))
    return np.array([word for word, _, _ in words]), np.array([place for _, *place in words], np.int64)


def _kept(tokens: int, most: int, truncation: pb.Truncation) -> NDArray[np.int64]:
    """Return the positions of the tokens that are kept of a text that is too long: its special tokens always are."""
    words = np.arange(1, tokens - 1)
    room = max(0, most - _SPECIAL_TOKENS)
    words = words[:room] if truncation == pb.TRUNCATION_RIGHT else words[len(words) - room :]
    return np.array([0, *words, tokens - 1])
