"""A fake server without a network, for tests of code that uses `Client` or `AsyncClient`."""

import hashlib
import re
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headwaiter_client.calls import steps
from headwaiter_client.errors import Cancelled, HeadwaiterError, ModelNotFound, Unavailable, Unimplemented
from headwaiter_client.transport.connection import capped_timeout_s
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
_Vectors = NDArray[np.float32]


class FakeEncoder:
    """A transport that checks requests by the server's rules, and answers them with made-up vectors.

    client = Client(transport=FakeEncoder())

    Equal sequences have equal vectors in every run, and texts that share words have similar vectors. The tokens of a
    text are its words and two special tokens. The model has the prompts "query" and "passage". To choose the vectors,
    pass a function as `vectors`; to test the handling of an error, append the error to `errors`.

    Args:
        width: number of values of a vector.
        vocabulary_size: token ids are below this number; 0 for a model that takes only features.
        feature_width: number of values of a feature row; 0 for a model that takes only token ids and texts.
        max_tokens: maximum tokens of a sequence.
        fixed_length: whether every sequence must have exactly `max_tokens` tokens, as in a model of images.
        prefix_rows: number of rows of zeros at the start of features; 1 in a Vision Transformer.
        image: the images that the model takes, for `model()`; None for a model that takes no images.
        max_text_tokens: most tokens of a text, special tokens included; `max_tokens` when None.
        max_request_sequences: maximum sequences of a request.
        max_request_tokens: maximum tokens of a request.
        model: name of the fake's only model.
        layers: number of attention layers.
        heads: number of attention heads of a layer.
        vectors: function that returns the pooled vector [width] of a sequence; hidden rows repeat this vector. The
            function receives a text (str, without the prompt), token ids [n] or feature rows [n, feature_width]. Like
            all pooled vectors, these are scaled to unit length unless the call says `normalize=False`.

    Attributes:
        requests: the EncodeRequest and AttendRequest messages received so far.
        errors: errors for the next calls; each call (even GetModel or a health check) removes and raises the first one.
        serving: set it to False to test a server that is not ready: health checks then say so, and all other calls
            raise `Unavailable`.
    """

    def __init__(
        self,
        *,
        width: int = 8,
        vocabulary_size: int = 30522,
        feature_width: int = 8,
        max_tokens: int = 512,
        fixed_length: bool = False,
        prefix_rows: int = 0,
        image: pb.ImageFormat | None = None,
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
        self._token_vectors: dict[object, _Vectors] = {}
        self._limits = requests.RequestLimits(
            max_request_sequences, max_request_tokens, _MAX_MESSAGE_BYTES, _MAX_ATTEND_BYTES
        )
        self._manifest = Manifest(
            name=model,
            vocabulary_size=vocabulary_size,
            feature_width=feature_width,
            max_tokens=max_tokens,
            fixed_length=fixed_length,
            class_row=prefix_rows > 0,
            prefix_rows=prefix_rows,
            image=image,
            max_text_tokens=(max_text_tokens or max_tokens) if vocabulary_size else 0,
            width=width,
            layers=layers,
            heads=heads,
            pooling=pb.POOLING_MEAN,
            normalized=True,
            attend=Graph(file="none"),  # A manifest without this graph refuses Attend.
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
        cancel_scope: CancelScope | None = None,
    ) -> bytes:
        """Answer a call immediately."""
        capped_timeout_s(timeout_s, request_id)
        if self._closed:
            raise Cancelled("the client is closed: create a new client", request_id=request_id)
        if self.errors:
            error = cast("object", self.errors.popleft())
            if not isinstance(error, HeadwaiterError):
                raise TypeError(f"errors holds {error!r}: append instances, such as Overloaded('the queue is full')")
            raise error
        if method == steps.HEALTH_METHOD:
            return steps.HEALTH_SERVING if self.serving else b""
        if not self.serving:
            raise Unavailable("the server is starting: wait until its health check reports SERVING")
        match method.rpartition("/")[2]:
            case "Encode":
                return self._encode(self._received(request, pb.EncodeRequest())).SerializeToString()
            case "Attend":
                return self._attend(self._received(request, pb.AttendRequest())).SerializeToString()
            case "ListModels":
                return pb.ListModelsResponse(models=[self._model_ref]).SerializeToString()
            case "GetModel":
                self._check_model(requests.parse(request, pb.GetModelRequest()).name)
                description = replies.model_response(self._manifest, self._limits)
                description.model.CopyFrom(self._model_ref)
                return description.SerializeToString()
            case _:
                raise Unimplemented(f"there is no method {method}", request_id=request_id)

    def close(self) -> None:
        """Make later calls raise `Cancelled`."""
        self._closed = True

    def _received(self, raw: bytes, message: _Request) -> _Request:
        """Parse a request and add it to `requests`."""
        request = requests.parse(raw, message)
        self.requests.append(request)
        requests.check_id(request.request_id)
        return request

    def _check_model(self, name: str) -> None:
        if name not in ("", self._manifest.name):
            raise ModelNotFound(
                f"the fake server has no model {name!r}; its only model is {self._manifest.name!r}: send that name",
                field="model",
            )

    def _encode(self, request: pb.EncodeRequest) -> pb.EncodeResponse:
        self._check_model(request.model)
        output = requests.read_options(request, self._manifest)
        parsed = self._read_input(request)
        failures = parsed.failures.by_sequence
        good = [index for index in range(len(parsed.sequences)) if index not in failures]
        rows = [self._hidden_rows(request, parsed, index) for index in good]
        pooled = self._pooled_vectors(rows, output) if output.pooled else None
        hidden = np.concatenate([np.empty((0, self._manifest.width), np.float32), *rows]) if output.hidden else None
        reply = replies.encode_response(parsed, output, pooled, hidden, failures)
        reply.request_id = request.request_id
        reply.model.CopyFrom(self._model_ref)
        return reply

    def _attend(self, request: pb.AttendRequest) -> pb.AttendResponse:
        """Answer with equal attention weights for all tokens."""
        self._check_model(request.model)
        requests.check_attend_request(request, self._manifest)
        parsed = self._read_input(request)
        (sequence,) = parsed.sequences
        n = len(sequence)
        layers, heads, query = select(request, n, self._manifest, self._limits.attend_bytes)
        weights = np.full((len(layers), len(heads), n, n), 1 / n, np.float32)
        context = None
        if query is not None:
            mean = self._hidden_rows(request, parsed, 0).mean(axis=0)
            context = np.broadcast_to(mean, (len(layers), len(heads), len(mean)))
        tokens = sequence.tolist() if request.HasField("texts") else []
        reply = replies.attend_response(weights, context, tokens)
        reply.request_id = request.request_id
        reply.model.CopyFrom(self._model_ref)
        return reply

    def _read_input(self, request: pb.EncodeRequest | pb.AttendRequest) -> inputs.ParsedInput:
        """Return the sequences of a request; the sequence of a text is an array of words."""
        # An AttendRequest has the same inputs as an EncodeRequest, but no options for them.
        options = request if isinstance(request, pb.EncodeRequest) else pb.EncodeRequest()
        failures = Failures(keep=options.partial)
        if not request.HasField("texts"):
            return inputs.read_rows(request, self._manifest, self._limits, failures)
        prompt = inputs.read_prompt(request.texts, self._manifest, self._limits)
        truncates = options.truncation in (pb.TRUNCATION_LEFT, pb.TRUNCATION_RIGHT)
        max_tokens = self._manifest.max_text_tokens
        inputs.check_texts(request.texts.values, failures)
        tokens, offsets, truncated = [], [], {}
        for index, text in enumerate(request.texts.values):
            words, spans = _NO_TOKENS if index in failures else _tokenize(text, prompt.text)
            original_tokens = len(words)
            if truncates and original_tokens > max_tokens:
                kept = _kept_positions(original_tokens, max_tokens, options.truncation)
                words, spans = words[kept], spans[kept]
            if len(words) > max_tokens:
                failures.add(inputs.text_too_long(index, original_tokens, max_tokens))
                words, spans = _NO_TOKENS
            elif len(words) < original_tokens:
                truncated[index] = original_tokens
            tokens.append(words)
            offsets.append(spans)
        parsed = inputs.read_tokenized(tokens, prompt, self._manifest, self._limits, failures)
        parsed.truncated = truncated
        parsed.offsets = offsets if options.output.offsets else None
        return parsed

    def _hidden_rows(
        self, request: pb.EncodeRequest | pb.AttendRequest, parsed: inputs.ParsedInput, index: int
    ) -> _Vectors:
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

    def _token_vector(self, key: object) -> _Vectors:
        """Return the random vector of a word, a token id or a feature row; equal keys have equal vectors."""
        if key not in self._token_vectors:
            seed = int.from_bytes(hashlib.sha256(repr(key).encode()).digest())
            self._token_vectors[key] = np.random.default_rng(seed).standard_normal(self._manifest.width, np.float32)
        return self._token_vectors[key]

    def _pooled_vectors(self, rows: list[_Vectors], output: Output) -> _Vectors:
        """Return the pooled vectors [sequences, dimensions]."""
        vectors = np.array([pool(each, output.pooling) for each in rows], np.float32)
        vectors = vectors.reshape(len(rows), self._manifest.width)[:, : output.dimensions]
        if not output.normalized:
            return vectors
        unit: _Vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.float32(1e-12))
        return unit


class AsyncFakeEncoder:
    """A `FakeEncoder` for asyncio: `AsyncClient(transport=AsyncFakeEncoder(fake))`."""

    def __init__(self, fake: FakeEncoder) -> None:
        self._fake = fake

    async def unary(self, method: str, request: bytes, timeout_s: float, request_id: str | None = None) -> bytes:
        """Answer a call; see `FakeEncoder.unary`."""
        return self._fake.unary(method, request, timeout_s, request_id)

    async def close(self) -> None:
        """Make later calls raise `Cancelled`."""
        self._fake.close()


_NO_TOKENS = (np.array([], object), np.empty((0, 2), np.int64))


def _tokenize(text: str, prompt: str) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Split a text at white space; return the tokens [n], and the begin and end of each token in the text [n, 2]."""
    tokens = [("[CLS]", 0, 0), *((word, 0, 0) for word in prompt.split())]
    tokens += [(found.group(), *found.span()) for found in re.finditer(r"\S+", text)]
    tokens.append(("[SEP]", 0, 0))
    # The dtype is object, because a numpy string array would give every word the size of the longest word.
    return np.array([word for word, _, _ in tokens], object), np.array([span for _, *span in tokens], np.int64)


def _kept_positions(tokens: int, max_tokens: int, truncation: pb.Truncation) -> NDArray[np.int64]:
    """Return the positions of the tokens that truncation keeps, always including the special tokens."""
    words = np.arange(1, tokens - 1)
    room = max(0, max_tokens - _SPECIAL_TOKENS)
    words = words[:room] if truncation == pb.TRUNCATION_RIGHT else words[len(words) - room :]
    return np.array([0, *words, tokens - 1])
