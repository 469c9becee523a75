"""What a path does: an operation on the sequences of a body, or a description of models. Pure functions."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import orjson
from numpy.typing import NDArray

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_proto.rules.errors import MAX_QUOTED_CHARACTERS, InvalidInput
from headwaiter_proto.rules.responses import row_counts
from headwaiter_proto.rules.tasks import Ability
from headwaiter_proto.rules.unicode import check_json_texts
from headwaiter_server.http.api.errors import OPENAI_ERRORS, ErrorForm
from headwaiter_server.http.bodies import UnsupportedEncoding
from headwaiter_server.models.served_model import ModelFacts
from headwaiter_server.requests.fields import Field, Question, Schema, fill, kind_of

_GZIP = b"\x1f\x8b"
Reply = pb.EncodeResponse | pb.ClassifyResponse
# The callers of a path: those with a token, everybody, or administrators. Bodies with tensors may be larger.
Rules = Literal["callers", "tensors", "anybody", "admins"]


def _nothing(_: Question) -> None:
    pass


def choose_prompt(question: Question, manifest: Manifest) -> None:
    """Choose the prompt for the use of the vectors, if the model has such a prompt.

    Raises:
        InvalidInput: the request has token ids, or names a prompt too.
    """
    request, wanted = question.encode, question.options.get("prompts", ())
    if wanted and request.HasField("tokens"):
        problem = "input_type belongs to texts, and the request has token ids"
        raise InvalidInput(f"{problem}: leave input_type out", field="input_type")
    if wanted and request.texts.prompt:
        raise InvalidInput("input_type and prompt contradict each other: send one of them", field="input_type")
    names = {prompt.name for prompt in manifest.prompts}
    if chosen := [name for name in wanted if name in names]:
        request.texts.prompt = chosen[0]


def truncate_like_vllm(question: Question, manifest: Manifest) -> None:
    """Let texts lose tokens if `truncate_prompt_tokens` is -1, or at least the model's own maximum.

    Raises:
        InvalidInput: texts would have to be shorter than the model allows, or the request says something else too.
    """
    request, tokens = question.encode, question.options.get("prompt_tokens")
    if tokens is None:
        return
    name, longest = "truncate_prompt_tokens", max_text_tokens(manifest)
    if 0 <= tokens < longest:
        raise InvalidInput(
            f"{name} is {tokens}, and the model takes {longest} tokens: send -1 or at least this number, or shorten "
            "the texts",
            field=name,
            limit=longest,
            actual=tokens,
        )
    truncation = question.options.get("side", pb.TRUNCATION_RIGHT)
    if request.truncation not in (pb.TRUNCATION_UNSPECIFIED, truncation):
        other = question.names["truncation"]
        raise InvalidInput(f"{other} and {name} contradict each other: send one of them", field=name)
    request.truncation, question.names["truncation"] = truncation, name


def adapt_to_model(question: Question, manifest: Manifest) -> None:
    """Set the options that depend on the model.

    Raises:
        InvalidInput: the model cannot do what the fields say, or the fields contradict each other.
    """
    choose_prompt(question, manifest)
    truncate_like_vllm(question, manifest)


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation on sequences.

    Attributes:
        about: what the operation does, for readers of its description.
        fields: the fields of the body.
        output: the outputs of the model that the operation needs, and their form.
        wanted: what the model must be able to do.
        write: returns the body of the reply; an EncodeResponse or, for scores, a ClassifyResponse becomes JSON, and so
            does a TokenizeResponse, or a list of the texts of token ids, if `wanted` is TOKENIZES.
        reply: the body of the reply in JSON Schema.
        errors: the form of errors.
        finish: sets options that depend on several fields; raises InvalidInput if the fields contradict each other.
        adapt: sets options that depend on the model; raises InvalidInput if the model cannot do what the fields say.
        check: raises InvalidInput if the reply cannot be written, given the message that `write` takes.
    """

    about: str
    fields: tuple[Field, ...]
    output: pb.OutputOptions
    wanted: Ability
    write: Callable[[Question, Any], bytes]
    reply: Schema
    of_model: ClassVar = True
    rules: ClassVar[Rules] = "callers"
    errors: ErrorForm = OPENAI_ERRORS
    finish: Callable[[Question], None] = _nothing
    adapt: Callable[[Question, Manifest], None] = adapt_to_model
    check: Callable[[Question, Any], None] = lambda *_: None


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What descriptions say of the server.

    Attributes:
        models: the models that answer requests, by name.
        version: the version of the server.
        started_s: the start of the server, in seconds since 1970.
        max_calls: most calls at a time.
        max_sequences: most sequences of a request.
        max_tokens: most tokens of a request.
    """

    models: Mapping[str, ModelFacts]
    version: str
    started_s: int
    max_calls: int
    max_sequences: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Description:
    """A description of the server or of a model.

    Attributes:
        about: what is described, for readers of the description of the path.
        write: returns the body of the reply, given the model that the path means, if the path means one.
        reply: the body of the reply in JSON Schema.
        of_model: whether the path means one model.
        errors: the form of errors.
    """

    about: str
    write: Callable[[ServerFacts, ModelFacts | None], bytes]
    reply: Schema
    fields: ClassVar = None
    rules: ClassVar[Rules] = "callers"
    of_model: bool = False
    errors: ErrorForm = OPENAI_ERRORS


@dataclass(slots=True)
class Asked:
    """A question, and the operation that answers the question."""

    operation: Operation
    question: Question = field(default_factory=lambda: Question(pb.EncodeRequest()))


def read_object(raw: bytes) -> dict[str, Any]:
    """Return the JSON object in a body.

    Raises:
        InvalidInput: the bytes are not a JSON object.
        UnsupportedEncoding: the bytes are compressed.
    """
    if raw.startswith(_GZIP):
        raise UnsupportedEncoding("the body is compressed with gzip: send the body without compression")
    try:
        values = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        check_json_texts(raw)
        raise InvalidInput(f"the body is not JSON ({error}): send a JSON object") from None
    if not isinstance(values, dict):
        raise InvalidInput(f"the body is {kind_of(values)}: send a JSON object")
    return values


def read_question(operations: Sequence[Operation], raw: bytes, model: str = "", *, path_wins: bool = False) -> Asked:
    """Return what a body asks: of several operations, the first that the body has the required fields and words for.

    Args:
        operations: the operations of the path.
        raw: the body.
        model: the model that the path names.
        path_wins: whether the body may name another model, which has no effect, as with Azure's deployments.

    Raises:
        InvalidInput: the body is wrong.
    """
    values = read_object(raw)
    operation = next((each for each in operations if _is_meant(each, values)), None)
    if operation is None:
        # The body is wrong, and the error names the fields of the operation that has most of the fields of the body.
        operation = max(operations, key=lambda each: len(values.keys() & {field.name for field in each.fields}))
    asked = Asked(operation)
    request = asked.question.encode
    request.output.CopyFrom(operation.output)
    fill(asked.question, operation.fields, values)
    operation.finish(asked.question)
    if model:
        if request.model not in ("", model) and not path_wins:
            body_name, path_name = (name[:MAX_QUOTED_CHARACTERS] for name in (request.model, model))
            problem = f"model is {body_name!r}, and the path names {path_name!r}"
            raise InvalidInput(f"{problem}: send one of them", field="model")
        request.model = model
    return asked


def _is_meant(operation: Operation, values: Mapping[str, Any]) -> bool:
    required = (each for each in operation.fields if each.required)
    given = ((values.get(each.name), each.kind.schema.get("enum")) for each in required)
    return all(value is not None and (words is None or value in words) for value, words in given)


def float_rows(tensor: pb.Tensor) -> NDArray[np.float32]:
    """Return the rows of a float32 tensor of a reply, [n, width]."""
    return np.frombuffer(tensor.data, "<f4").reshape(*tensor.shape)


def json_rows(vectors: NDArray[np.float32]) -> Iterator[orjson.Fragment]:
    """Yield each vector as a JSON list.

    orjson holds Python's global lock while it writes, so thousands of vectors at once would stop all other threads.
    """
    return (orjson.Fragment(orjson.dumps(vector, option=orjson.OPT_SERIALIZE_NUMPY)) for vector in vectors)


def token_rows(reply: pb.EncodeResponse) -> list[list[orjson.Fragment]]:
    """Return the rows of the tokens of each sequence as JSON lists."""
    rows = iter(json_rows(float_rows(reply.hidden)))
    return [[next(rows) for _ in range(count)] for count in row_counts(reply)]


def ranking(question: Question, reply: pb.ClassifyResponse) -> list[tuple[int, float, str]]:
    """Return the index, the score and the text of documents, the highest logit first; equal ones keep their order."""
    texts, scores = question.encode.pairs.second, float_rows(reply.scores)[:, 0]
    # Different logits may have equal scores.
    order = np.argsort(-float_rows(reply.logits)[:, 0], kind="stable").tolist()
    order = order[: question.options.get("top_n") or None]
    return [(index, float(scores[index]), texts[index]) for index in order]


def token_usage(reply: Reply) -> dict[str, int]:
    """Return the number of tokens of a request, as OpenAI's interface counts them."""
    tokens = sum(reply.lengths)
    return {"prompt_tokens": tokens, "total_tokens": tokens}


def max_text_tokens(manifest: Manifest) -> int:
    """Return the most tokens of a text, or of a sequence if the model takes no texts."""
    return manifest.max_text_tokens or manifest.max_tokens


# Parts of the descriptions of replies.
STRING: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
SCORE: Schema = {"type": "number"}
VECTOR: Schema = {"type": "array", "items": SCORE}
USAGE: Schema = {"type": "object", "properties": {"prompt_tokens": COUNT, "total_tokens": COUNT}}


def array(items: Schema) -> Schema:
    """Return the JSON Schema of a list."""
    return {"type": "array", "items": items}


def record(**properties: Schema) -> Schema:
    """Return the JSON Schema of an object that has at least these properties."""
    return {"type": "object", "properties": properties, "required": list(properties)}
