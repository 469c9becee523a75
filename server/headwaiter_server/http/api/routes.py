"""The table of paths, and how each path is answered."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any

from google.protobuf.message import Message
from starlette.requests import Request

from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_proto.rules.errors import HeadwaiterError, InvalidInput
from headwaiter_proto.rules.outputs import WantedOutput
from headwaiter_proto.rules.sequences import ParsedInput
from headwaiter_server.http.api import cohere, ollama, openai, tei, vllm
from headwaiter_server.http.api.data_urls import take_images
from headwaiter_server.http.api.errors import ErrorForm
from headwaiter_server.http.api.operations import Asked, Description, Operation, ServerFacts, read_question
from headwaiter_server.http.endpoint import Method
from headwaiter_server.requests.call import Call
from headwaiter_server.requests.replies import answer_bytes
from headwaiter_server.requests.request_path import ReplyForm, RequestPath, adopt_id, reserve_nothing

# JSON writes a number of 4 bytes as up to 12 characters, and an entry of a sparse vector, of 8 bytes, as up to 48.
_JSON_BYTES_PER_BYTE, _JSON_BYTES_PER_BYTE_OF_ENTRY = 3, 6
_MODEL_PREFIX = "/models/{model}"


@dataclass(frozen=True, slots=True)
class Entry:
    """A path.

    Attributes:
        path: the path; may hold {model}.
        does: what the path does; of several operations, the one whose required fields a body has.
    """

    path: str
    does: Sequence[Operation] | Description

    @property
    def verb(self) -> str:
        """The HTTP method of the path."""
        return "GET" if isinstance(self.does, Description) else "POST"

    @property
    def errors(self) -> ErrorForm:
        """The form of errors."""
        return self.does.errors if isinstance(self.does, Description) else self.does[0].errors


TABLE = (
    Entry("/v1/embeddings", [openai.EMBEDDINGS]),
    Entry("/embeddings", [openai.EMBEDDINGS]),
    Entry("/openai/deployments/{model}/embeddings", [openai.EMBEDDINGS]),
    Entry("/openai/v1/embeddings", [openai.EMBEDDINGS]),
    Entry("/v1/models", openai.MODELS),
    Entry("/v1/models/{model}", openai.ONE_MODEL),
    Entry("/embed", [tei.EMBED]),
    Entry("/", [tei.EMBED]),
    Entry("/embed_sparse", [tei.EMBED_SPARSE]),
    Entry("/embed_all", [tei.EMBED_ALL]),
    Entry("/similarity", [tei.SIMILARITY]),
    Entry("/predict", [tei.PREDICT]),
    Entry("/info", tei.INFO),
    Entry("/rerank", [tei.RERANK, vllm.INFINITY_RERANK]),
    Entry("/v1/rerank", [cohere.RERANK_V1]),
    Entry("/v2/rerank", [cohere.RERANK_V2]),
    Entry("/score", vllm.SCORE_PAIRS),
    Entry("/v1/score", vllm.SCORE_PAIRS),
    Entry("/classify", [vllm.CLASSIFY]),
    Entry("/v1/classify", [vllm.CLASSIFY]),
    Entry("/pooling", [vllm.POOL_TOKENS, vllm.POOL_SCORES, vllm.POOL]),
    Entry("/v1/embed", [cohere.EMBED_V1]),
    Entry("/v2/embed", [cohere.EMBED_V2]),
    Entry("/api/embed", [ollama.EMBED]),
    Entry("/api/embeddings", [ollama.ONE_EMBEDDING]),
    Entry("/api/tags", ollama.TAGS),
)


def with_prefix(path: str) -> str:
    """Return a path that names the model before an entry's path."""
    return _MODEL_PREFIX + path.rstrip("/")


def takes_prefix(entry: Entry) -> bool:
    """Return whether a path may name the model before an entry's path."""
    of_model = entry.does.of_model if isinstance(entry.does, Description) else True
    return of_model and "{model}" not in entry.path


def api_methods(path: RequestPath) -> list[Method[Any]]:
    """Return what answers the paths of the table, and the same paths after /models/NAME."""
    started_s = int(time.time())
    methods = []
    for entry in TABLE:
        method = _method(path, entry, started_s)
        methods.append(method)
        if takes_prefix(entry):
            methods.append(method.at(with_prefix(entry.path)))
    return methods


def _method(path: RequestPath, entry: Entry, started_s: int) -> Method[Any]:
    does, name = entry.does, f"{entry.verb} {entry.path}"
    if isinstance(does, Description):

        async def describe(model: str, call: Call) -> bytes:
            facts = _facts(path, started_s)
            if not does.of_model:
                return does.write(facts, None)
            with path.used(model, "", call) as served:
                return does.write(facts, served.facts)

        return Method(
            name,
            _path_model,
            describe,
            lambda _, reply: reply,
            lambda error, status, _: does.errors.write(error, status, (), {}),
        )
    return Method(
        name,
        lambda request, body: read_question(does, body, _path_model(request, body), path_wins="{model}" in entry.path),
        partial(_answer, path),
        _write,
        partial(_write_error, does),
    )


def _path_model(request: Request, _: bytes) -> str:
    return str(request.path_params.get("model", ""))


async def _answer(path: RequestPath, asked: Asked, call: Call) -> Message:
    request, wanted = asked.question.encode, asked.operation.wanted
    adopt_id(call, request.request_id)

    def adapt(manifest: Manifest) -> None:
        asked.operation.adapt(asked.question, manifest)
        take_images(request, manifest)

    if request.output.scores:
        return await path.classify(request, call, lambda reply: reply, wanted, adapt)
    form = ReplyForm(partial(_json_bytes, path.settings.max_reply_bytes), lambda reply: reply)
    with path.encoding(request.model, request.model_version, call, wanted) as served:
        adapt(served.manifest)
        request.output.dense = served.manifest.sparse and not request.output.sparse
        return await path.encode(request, served, call, reserve_nothing, form)


def _json_bytes(max_reply_bytes: int, parsed: ParsedInput, output: WantedOutput, manifest: Manifest) -> int:
    """Return the largest size of a reply in JSON.

    Raises:
        InvalidInput: rows of tokens have more than `max_reply_bytes` bytes.
    """
    has_entries = (output.pooled and output.sparse) or output.unweighted_ids is not None
    factor = _JSON_BYTES_PER_BYTE_OF_ENTRY if has_entries else _JSON_BYTES_PER_BYTE
    size_bytes = factor * answer_bytes(parsed, output, manifest)
    if output.hidden and size_bytes > max_reply_bytes:
        raise InvalidInput(
            f"the rows of all tokens take {size_bytes} bytes of JSON; the server sends at most {max_reply_bytes}: "
            "split the request, or ask for the rows over gRPC",
            limit=max_reply_bytes,
            actual=size_bytes,
        )
    return size_bytes


def _write(asked: Asked, reply: Message) -> bytes:
    return asked.operation.write(asked.question, reply)


def _write_error(does: Sequence[Operation], error: HeadwaiterError, status: int, asked: Asked | None) -> bytes:
    if asked is None:
        # Errors of reading have the names of the body already.
        return does[0].errors.write(error, status, (), {})
    return asked.operation.errors.write(error, status, asked.operation.fields, asked.question.names)


def _facts(path: RequestPath, started_s: int) -> ServerFacts:
    settings = path.settings
    return ServerFacts(
        models={each.name: each.facts for each in path.engine.directory.served},
        version=version("headwaiter"),
        started_s=started_s,
        max_calls=settings.max_calls,
        max_sequences=path.limits.sequences,
        max_tokens=path.limits.tokens,
    )
