"""A fake server without a network, for tests of code that uses `Client` or `AsyncClient`."""

import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast
from zlib import crc32

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headwaiter_client.calls import steps
from headwaiter_client.calls.results import unit
from headwaiter_client.fake_inputs import read_input
from headwaiter_client.transport.connection import capped_timeout_s
from headwaiter_client.transport.interface import CancelScope
from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import Graph, Manifest
from headwaiter_proto.rules import classification, requests, responses, sequences, tokens
from headwaiter_proto.rules.attend import select
from headwaiter_proto.rules.errors import Cancelled, HeadwaiterError, ModelNotFound, Starting, Unimplemented
from headwaiter_proto.rules.limits import RequestLimits
from headwaiter_proto.rules.outputs import WantedOutput
from headwaiter_proto.rules.pooling import pool
from headwaiter_proto.rules.sparse import sparse_vectors
from headwaiter_proto.rules.tasks import TOKENIZES, wrong_model

_PROMPTS = [pb.Prompt(name=name, text=f"{name}: ", tokens=2) for name in ("query", "passage")]
_MAX_MESSAGE_BYTES = 1 << 24
_MAX_ATTEND_BYTES = 1 << 26
_Request = TypeVar("_Request", pb.EncodeRequest, pb.ClassifyRequest, pb.AttendRequest, pb.TokenizeRequest)
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
        sound: the sounds that the model takes, for `model()`; None for a model that takes no samples of sounds.
        target: how sequences are divided in source and target; None for a model without targets. A model with targets
            takes no texts and has no pooling.
        max_text_tokens: most tokens of a text, special tokens included; `max_tokens` when None.
        max_request_sequences: maximum sequences of a request.
        max_request_tokens: maximum tokens of a request.
        model: name of the fake's only model.
        layers: number of attention layers.
        heads: number of attention heads of a layer.
        vectors: function that returns the pooled vector [width] of a sequence; hidden rows repeat this vector. The
            function receives a text (str, without the prompt), the bytes of an image, token ids [n] or feature rows
            [n, feature_width]. Like all pooled vectors, these are scaled to unit length unless the call says
            `normalize=False`.
        sparse: whether the pooled vectors are sparse, with `width` token ids: the maximum of each dimension over the
            rows, without numbers up to 0. The vectors that `vectors` returns should then be mostly 0.
        labels: labels of the model's head; without labels, the fake refuses to classify.
        per_token: whether each token has scores; otherwise each sequence has.
        scores: function that returns the scores of a sequence, [labels] or, if `per_token`, [n, labels]. The function
            receives what `vectors` receives, or a pair of texts. By default, a model of one label scores a pair of
            texts by the cosine of their vectors.

    Attributes:
        requests: the messages of requests to encode, to classify, to tokenize and to attend, received so far.
        errors: errors for the next calls; each call (even GetModel or a health check) removes and raises the first one.
        serving: set it to False to test a server that is not ready: health checks then say so, and all other calls
            raise `Starting`.
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
        sound: pb.SoundFormat | None = None,
        target: pb.TargetFormat | None = None,
        max_text_tokens: int | None = None,
        max_request_sequences: int = 4096,
        max_request_tokens: int = 65536,
        model: str = "fake",
        layers: int = 2,
        heads: int = 3,
        vectors: Callable[[Any], ArrayLike] | None = None,
        sparse: bool = False,
        labels: Sequence[str] = (),
        per_token: bool = False,
        scores: Callable[[Any], ArrayLike] | None = None,
    ) -> None:
        self.requests: list[pb.EncodeRequest | pb.ClassifyRequest | pb.AttendRequest | pb.TokenizeRequest] = []
        self.errors: deque[HeadwaiterError] = deque()
        self.serving = True
        self._closed = False
        self._vectors, self._scores = vectors, scores
        self._token_vectors: dict[object, _Vectors] = {}
        self._limits = RequestLimits(max_request_sequences, max_request_tokens, _MAX_MESSAGE_BYTES, _MAX_ATTEND_BYTES)
        self._manifest = Manifest(
            name=model,
            vocabulary_size=width if sparse else vocabulary_size,
            feature_width=feature_width,
            max_tokens=max_tokens,
            fixed_length=fixed_length,
            class_row=prefix_rows > 0,
            prefix_rows=prefix_rows,
            image=image,
            sound=sound,
            target=target,
            min_tokens=2 if target else 1,
            max_text_tokens=(max_text_tokens or max_tokens) if vocabulary_size and not target else 0,
            width=width,
            layers=layers,
            heads=heads,
            pooling=pb.POOLING_NONE if target else pb.POOLING_MAX if sparse else pb.POOLING_MEAN,
            fixed_pooling=sparse,
            normalized=not (sparse or target),
            sparse=sparse,
            attend=Graph(file="none"),  # A manifest without this graph refuses Attend.
            prompts=_PROMPTS,
            head=pb.Head(labels=labels, function=pb.SCORE_FUNCTION_IDENTITY, per_token=per_token) if labels else None,
            takes_pairs=bool(labels and vocabulary_size),
        )
        digest, results_digest = (hashlib.sha256(text.encode()).hexdigest() for text in (model, f"results of {model}"))
        self._model_ref = pb.ModelRef(
            name=model, digest=digest, precision=pb.PRECISION_FP32, results_digest=results_digest
        )

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
            raise Starting("the server is starting: wait until its health check reports SERVING", retry_after_s=1.0)
        match method.rpartition("/")[2]:
            case "Encode":
                return self._encode(self._received(request, pb.EncodeRequest())).SerializeToString()
            case "Classify":
                return self._classify(self._received(request, pb.ClassifyRequest())).SerializeToString()
            case "Tokenize":
                return self._tokenize(self._received(request, pb.TokenizeRequest())).SerializeToString()
            case "Attend":
                return self._attend(self._received(request, pb.AttendRequest())).SerializeToString()
            case "ListModels":
                return pb.ListModelsResponse(models=[self._model_ref]).SerializeToString()
            case "GetModel":
                self._check_model(requests.parse(request, pb.GetModelRequest()).name)
                description = responses.model_response(self._manifest, self._limits)
                description.model.CopyFrom(self._model_ref)
                return description.SerializeToString()
            case "ListBatches":
                self._check_model(requests.parse(request, pb.ListBatchesRequest()).model)
                return pb.ListBatchesResponse().SerializeToString()
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
        parsed = read_input(request, self._manifest, self._limits)
        failures = parsed.failures.by_sequence
        good = [index for index in range(len(parsed.sequences)) if index not in failures]
        rows = [self._hidden_rows(request, parsed, index) for index in good]
        pooled = self._pooled_vectors(rows, output) if output.pooled else None
        hidden = np.concatenate([np.empty((0, self._manifest.width), np.float32), *rows]) if output.hidden else None
        logits = [self._logits(request, parsed, index) for index in good] if output.head else None
        vectors = pooled if pooled is None or not output.sparse else sparse_vectors(pooled)
        reply = responses.encode_response(parsed, output, vectors, hidden, failures, logits)
        reply.request_id = request.request_id
        reply.model.CopyFrom(self._model_ref)
        return reply

    def _classify(self, request: pb.ClassifyRequest) -> pb.ClassifyResponse:
        encode_request = classification.encode_request(request)
        head = classification.read_head(encode_request.output, self._manifest)
        assert head is not None
        return classification.classify_response(self._encode(encode_request), head)

    def _tokenize(self, request: pb.TokenizeRequest) -> pb.TokenizeResponse:
        """Answer with a made-up id for each word; different words may have the same id."""
        self._check_model(request.model)
        encode = tokens.read_tokenize_request(request)
        if not TOKENIZES.has(self._manifest):
            raise wrong_model(self._manifest.name, self._manifest, TOKENIZES)
        tokens.check_tokenize_request(encode, self._manifest)
        parsed = read_input(encode, self._manifest, self._limits, any_length=True)
        words = np.concatenate(parsed.sequences).tolist()
        vocabulary_size = self._manifest.vocabulary_size
        ids = np.array([crc32(word.encode()) % vocabulary_size for word in words], np.int64)
        parsed.sequences = [*np.split(ids, np.cumsum([len(each) for each in parsed.sequences])[:-1])]
        strings = words if request.strings else []
        return tokens.tokenize_response(parsed, strings, self._model_ref, request.request_id)

    def _attend(self, request: pb.AttendRequest) -> pb.AttendResponse:
        """Answer with equal attention weights for all tokens."""
        self._check_model(request.model)
        requests.check_attend_request(request, self._manifest)
        parsed = read_input(request, self._manifest, self._limits)
        (sequence,) = parsed.sequences
        n = len(sequence)
        layers, heads, query, with_vectors = select(request, n, self._manifest, self._limits.attend_bytes)
        weights = np.full((len(layers), len(heads), n, n), 1 / n, np.float32)
        rows = self._hidden_rows(request, parsed, 0)
        context = None
        if query is not None:
            context = np.broadcast_to(rows.mean(axis=0), (len(layers), len(heads), rows.shape[1]))
        tokens = sequence.tolist() if request.WhichOneof("input") in ("texts", "pairs") else []
        # Keys of zeros have equal weights.
        vectors = (np.zeros_like(rows[0]), np.zeros_like(rows), rows) if with_vectors else ()
        reply = responses.attend_response(weights, context, tokens, *vectors)
        reply.request_id = request.request_id
        reply.model.CopyFrom(self._model_ref)
        return reply

    def _hidden_rows(
        self, request: pb.EncodeRequest | pb.AttendRequest, parsed: sequences.ParsedInput, index: int
    ) -> _Vectors:
        """Return the hidden rows [n, width] of a sequence."""
        sequence, width = parsed.sequences[index], self._manifest.width
        if self._vectors is None:
            keys = sequence.tolist() if sequence.ndim == 1 else map(tuple, sequence.tolist())
            return np.stack([self._token_vector(key) for key in keys])
        vector = np.asarray(self._vectors(_as_sent(request, sequence, index)))
        if vector.shape != (width,):
            raise ValueError(
                f"vectors returned an array of shape {vector.shape} for sequence {index}: return a vector of {width} "
                "numbers, or pass another width to FakeEncoder"
            )
        return np.tile(vector.astype(np.float32), (len(sequence), 1))

    def _logits(self, request: pb.EncodeRequest, parsed: sequences.ParsedInput, index: int) -> _Vectors:
        """Return the logits of a sequence, [1, labels], or of each of its tokens, [n, labels]."""
        sequence, head = parsed.sequences[index], self._manifest.head
        shape = (len(sequence) if head.per_token else 1, len(head.labels))
        if self._scores is not None:
            given = np.asarray(self._scores(_as_sent(request, sequence, index)), np.float32)
            if given.shape != (shape if head.per_token else shape[1:]):
                raise ValueError(
                    f"scores returned an array of shape {given.shape} for sequence {index}: return one number for each "
                    f"of {len(head.labels)} labels{', for each token' if head.per_token else ''}"
                )
            return given.reshape(shape)
        rows = self._hidden_rows(request, parsed, index)
        vectors = unit(rows if head.per_token else rows.mean(axis=0, keepdims=True))
        if request.HasField("pairs") and shape == (1, 1):
            first, second = (
                unit(np.stack([self._token_vector(word) for word in text.split()]).mean(axis=0))
                for text in _as_sent(request, sequence, index)
            )
            return np.array([[first @ second]], np.float32)
        return vectors @ np.stack([self._token_vector(("label", label)) for label in head.labels]).T

    def _token_vector(self, key: object) -> _Vectors:
        """Return the random vector of a word, a token id or a feature row; equal keys have equal vectors."""
        if key not in self._token_vectors:
            seed = int.from_bytes(hashlib.sha256(repr(key).encode()).digest())
            self._token_vectors[key] = np.random.default_rng(seed).standard_normal(self._manifest.width, np.float32)
        return self._token_vectors[key]

    def _pooled_vectors(self, rows: list[_Vectors], output: WantedOutput) -> _Vectors:
        """Return the pooled vectors [sequences, dimensions]."""
        vectors = np.array([pool(each, output.pooling) for each in rows], np.float32)
        vectors = vectors.reshape(len(rows), self._manifest.width)[:, : output.dimensions]
        if self._manifest.sparse:
            vectors = np.maximum(vectors, 0)
        return unit(vectors) if output.normalized else vectors


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


def _as_sent(request: pb.EncodeRequest | pb.AttendRequest, sequence: Any, index: int) -> Any:
    """Return a sequence as the caller passed it: a text, a pair, the bytes of an image, token ids or feature rows."""
    if request.HasField("pairs"):
        first = request.pairs.first
        return first[index if len(first) > 1 else 0], request.pairs.second[index]
    if request.HasField("images"):
        return request.images.values[index]
    return request.texts.values[index] if request.HasField("texts") else sequence
