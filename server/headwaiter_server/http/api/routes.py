"""The table of paths, and how each path is answered."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any, cast

from google.protobuf.message import Message
from starlette.requests import Request

from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_proto.rules.errors import HeadwaiterError, InvalidInput
from headwaiter_proto.rules.outputs import WantedOutput
from headwaiter_proto.rules.sequences import ParsedInput
from headwaiter_proto.rules.tasks import TOKENIZES, of_texts
from headwaiter_server.http.api import cohere, ollama, open_inference, openai, tei, tokens, vllm
from headwaiter_server.http.api.data_urls import has_images, take_images
from headwaiter_server.http.api.late_chunking import LATE_CHUNKED_EMBEDDINGS
from headwaiter_server.http.api.open_inference import Procedure, json_bytes
from headwaiter_server.http.api.operations import (
    Asked,
    Description,
    Operation,
    Rules,
    ServerFacts,
    read_question,
)
from headwaiter_server.http.endpoint import Method
from headwaiter_server.open_inference.methods import OpenInferenceMethods
from headwaiter_server.requests.call import Call
from headwaiter_server.requests.replies import answer_bytes
from headwaiter_server.requests.request_path import ReplyForm, RequestPath, adopt_id, reserve_nothing

# JSON writes a number of 4 bytes as up to 12 characters, and an entry of a sparse vector, of 8 bytes, as up to 48.
_JSON_BYTES_PER_BYTE, _JSON_BYTES_PER_BYTE_OF_ENTRY = 3, 6
_MODEL_PREFIX = "/models/{model}"
# A model of the Open Inference Protocol.
_MODEL, _VERSION = "/v2/models/{model}", "/v2/models/{model}/versions/{version}"


@dataclass(frozen=True, slots=True)
class Entry:
    """A path.

    Attributes:
        path: the path; may hold {model}.
        does: what the path does; of several operations, the one whose required fields a body has.
    """

    path: str
    does: Sequence[Operation] | Sequence[Description] | Sequence[Procedure]

    @property
    def verb(self) -> str:
        """The HTTP method of the path."""
        return "GET" if self.does[0].fields is None else "POST"

    @property
    def paths(self) -> list[str]:
        """The path, and the same path after the name of a model, or with a version of the model."""
        if self.path.startswith(_MODEL):
            return [self.path, self.path.replace(_MODEL, _VERSION)]
        if self.does[0].of_model and "{model}" not in self.path:
            return [self.path, _MODEL_PREFIX + self.path.rstrip("/")]
        return [self.path]


_EMBEDDINGS = [LATE_CHUNKED_EMBEDDINGS, openai.EMBEDDINGS]
TABLE = (
    Entry("/v1/embeddings", _EMBEDDINGS),
    Entry("/embeddings", _EMBEDDINGS),
    Entry("/openai/deployments/{model}/embeddings", _EMBEDDINGS),
    Entry("/openai/v1/embeddings", _EMBEDDINGS),
    Entry("/v1/models", [openai.MODELS]),
    Entry("/v1/models/{model}", [openai.ONE_MODEL]),
    Entry("/embed", [tei.EMBED]),
    Entry("/", [tei.EMBED]),
    Entry("/embed_sparse", [tei.EMBED_SPARSE]),
    Entry("/embed_all", [tei.EMBED_ALL]),
    Entry("/similarity", [tei.SIMILARITY]),
    Entry("/predict", [tei.PREDICT]),
    Entry("/info", [tei.INFO]),
    Entry("/tokenize", [tokens.TEI_TOKENIZE, tokens.VLLM_TOKENIZE]),
    Entry("/decode", [tokens.TEI_DECODE]),
    Entry("/detokenize", [tokens.VLLM_DETOKENIZE]),
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
    Entry("/api/tags", [ollama.TAGS]),
    Entry("/v2", [open_inference.SERVER]),
    Entry("/v2/models/stats", [open_inference.STATISTICS]),
    Entry("/v2/models/{model}", [open_inference.MODEL]),
    Entry("/v2/models/{model}/config", [open_inference.CONFIG]),
    Entry("/v2/models/{model}/stats", [open_inference.STATISTICS]),
    Entry("/v2/models/{model}/ready", [open_inference.READY]),
    Entry("/v2/models/{model}/infer", [open_inference.INFER]),
    Entry("/v2/repository/index", [open_inference.INDEX]),
    Entry("/v2/repository/models/{model}/load", [open_inference.LOAD]),
    Entry("/v2/repository/models/{model}/unload", [open_inference.UNLOAD]),
)


def api_methods(path: RequestPath) -> Iterator[tuple[Rules, Method[Any]]]:
    """Yield what answers each path of the table, with the rules of its requests."""
    started_s = int(time.time())
    for entry in TABLE:
        method = _method(path, entry, started_s)
        for each in entry.paths:
            yield entry.does[0].rules, method.at(each)


def _method(path: RequestPath, entry: Entry, started_s: int) -> Method[Any]:
    does, name = entry.does[0], f"{entry.verb} {entry.path}"

    def write_error(error: HeadwaiterError, status: int, _: Any) -> bytes:
        return does.errors.write(error, status, (), {})

    if isinstance(does, Procedure):
        answer = partial(does.answer, OpenInferenceMethods(path))
        return Method(name, does.read, answer, does.write, write_error, json_bytes=json_bytes)
    if isinstance(does, Description):

        async def describe(model: str, call: Call) -> bytes:
            facts = _facts(path, started_s)
            if not does.of_model:
                return does.write(facts, None)
            return does.write(facts, path.facts(model, "", call))

        return Method(name, _path_model, describe, lambda _, reply: reply, write_error)
    path_wins, operations = "{model}" in entry.path, cast(Sequence[Operation], entry.does)
    return Method(
        name,
        lambda request, body: read_question(operations, body, _path_model(request, body), path_wins=path_wins),
        partial(_answer, path),
        _write,
        partial(_write_error, does),
    )


def _path_model(request: Request, _: bytes) -> str:
    return str(request.path_params.get("model", ""))


async def _answer(path: RequestPath, asked: Asked, call: Call) -> Message | bytes:
    request, wanted = asked.question.encode, asked.operation.wanted
    adopt_id(call, request.request_id)
    if wanted is TOKENIZES:
        options, write = asked.question.options, partial(asked.operation.write, asked.question)
        if request.HasField("tokens"):
            return await path.decode(request, call, write, skip_special_tokens=options.get("skip_special", False))
        return await path.tokenize(request, call, write, strings=options.get("strings", True))

    if request.HasField("texts") and not has_images(request):
        wanted = of_texts(wanted)

    def adapt(manifest: Manifest) -> None:
        asked.operation.adapt(asked.question, manifest)
        take_images(request, manifest)

    if request.output.scores:
        return await path.classify(request, call, lambda reply: reply, wanted, adapt)
    form = ReplyForm(partial(_json_bytes, path.settings.max_reply_bytes), lambda reply: reply)
    async with path.encoding(request.model, request.model_version, call, wanted, request.timeout_s) as served:
        adapt(served.manifest)
        request.output.dense = served.manifest.sparse and not request.output.sparse
        reply = await path.encode(request, served, call, reserve_nothing, form)
        asked.operation.check(asked.question, reply)
        return reply


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


def _write(asked: Asked, reply: Message | bytes) -> bytes:
    return reply if isinstance(reply, bytes) else asked.operation.write(asked.question, reply)


def _write_error(first: Operation, error: HeadwaiterError, status: int, asked: Asked | None) -> bytes:
    if asked is None:
        # Errors of reading have the names of the body already.
        return first.errors.write(error, status, (), {})
    return asked.operation.errors.write(error, status, asked.operation.fields, asked.question.names)


def _facts(path: RequestPath, started_s: int) -> ServerFacts:
    settings = path.settings
    return ServerFacts(
        models={each.name: each for each in path.engine.directory.known},
        version=version("headwaiter"),
        started_s=started_s,
        max_calls=settings.max_calls,
        max_sequences=path.limits.sequences,
        max_tokens=path.limits.tokens,
    )
