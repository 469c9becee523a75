"""The fields that several interfaces share."""

from typing import Any

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import InvalidInput
from headwaiter_server.http.api.sequences import DOCUMENTS, INPUT, QUERY
from headwaiter_server.requests.fields import (
    BOOLEAN,
    SECONDS,
    TEXT,
    Field,
    Question,
    group,
    ignored,
    one_of,
    whole_number,
)
from headwaiter_server.requests.options import NORMALIZE, PRIORITIES, TRUNCATIONS

# Cohere's and NIM's words, and those of Jina and Ollama.
TRUNCATED_END = {"NONE": pb.TRUNCATION_ERROR, "START": pb.TRUNCATION_LEFT, "END": pb.TRUNCATION_RIGHT}
TRUNCATED_OR_NOT = {True: pb.TRUNCATION_RIGHT, False: pb.TRUNCATION_ERROR}
# 0 is the default of vLLM and Cohere.
_PRIORITIES: dict[Any, Any] = {**PRIORITIES, 0: pb.PRIORITY_INTERACTIVE}
_SIDES = {side: TRUNCATIONS[side.lower()] for side in ("Right", "Left", "right", "left")}
# The names that models give to the prompt for each use of a vector.
_QUERY_PROMPTS = ("query", "search_query", "retrieval.query")
_DOCUMENT_PROMPTS = ("document", "passage", "search_document", "retrieval.passage")
_PROMPTS = {
    **dict.fromkeys(("search_query", "query"), _QUERY_PROMPTS),
    **dict.fromkeys(("search_document", "document", "passage"), _DOCUMENT_PROMPTS),
    "classification": ("classification",),
    "clustering": ("clustering",),
}

MODEL = Field(
    "model", TEXT, "model", "Name of the model; without a name, the default model or the only one that suits."
)
TIMEOUT_S = Field("timeout_s", SECONDS, "timeout_s", "Seconds until the answer is no longer needed.")
PRIORITY = Field("priority", one_of(_PRIORITIES), "priority", "Whether a user waits: interactive or 0; default.")
# The fields of every request that computes something.
CALL = (MODEL, PRIORITY, TIMEOUT_S)
TRUNCATE_PROMPT_TOKENS = Field(
    "truncate_prompt_tokens",
    whole_number(-1),
    "options.prompt_tokens",
    "-1, or at least the model's own maximum: texts that are too long lose tokens.",
)
TRUNCATION_SIDE = Field(
    "truncation_side",
    one_of({side: TRUNCATIONS[side] for side in ("left", "right")}),
    "options.side",
    "The end that loses tokens with truncate_prompt_tokens; default: right.",
)
TASK = Field("task", TEXT, "texts.prompt", "Name of the model's prompt, as Jina's models name their tasks.")
INPUT_TYPE = Field(
    "input_type",
    one_of(_PROMPTS),
    "options.prompts",
    "What the vectors are for: chooses the prompt of the model, if the model has such a prompt.",
)
# vLLM's new name of normalize.
NORMALIZE_LIKE_VLLM = Field("use_activation", NORMALIZE.kind, NORMALIZE.place, "The same as normalize.")
# The model's tokenizer decides which special tokens there are.
ADD_SPECIAL_TOKENS = Field("add_special_tokens", one_of({True: None}), about="Only true: the tokenizer adds them.")
USER = ignored("user", TEXT)
REQUEST_ID = Field("request_id", TEXT, "request_id", "Id of the request in the server's log and in X-Request-Id.")
# What vLLM's fields say of the numbers in base64.
EMBED_DTYPE = Field("embed_dtype", one_of({"float32": None}), about="Only float32.")
ENDIANNESS = Field("endianness", one_of(dict.fromkeys(("native", "little"))), about="Only native or little.")
ONE_SEQUENCE_OR_SEVERAL = Field("input", INPUT, "input", "Texts, or token ids of the model's tokenizer.", required=True)

USE_ACTIVATION = Field("use_activation", one_of({True: False, False: True}), "output.raw_scores", "False: logits.")
QUERY_TEXT = Field("query", QUERY, "pairs.first", "The query.", required=True)
DOCUMENT_TEXTS = Field("documents", DOCUMENTS, "pairs.second", "The documents to rank.", required=True)
TOP_N = Field("top_n", whole_number(0), "options.top_n", "Most documents of the reply; 0: all.")

TRUNCATE = Field("truncate", BOOLEAN, "options.truncate", "Whether texts that are too long lose tokens.", default=False)
DIRECTION = Field("truncation_direction", one_of(_SIDES), "options.side", "The end that loses tokens; default: Right.")
PROMPT_NAME = Field("prompt_name", TEXT, "texts.prompt", "Name of the model's prompt.")


def with_parameters(*fields: Field, nested: tuple[Field, ...]) -> tuple[Field, ...]:
    """Return fields that may also stand in an object `parameters`, where huggingface_hub puts them."""
    return (*fields, *nested, group("parameters", nested))


def truncate_like_tei(question: Question) -> None:
    """Set the truncation that the fields of TEI ask for.

    Raises:
        InvalidInput: token ids are to be truncated.
    """
    request, options = question.encode, question.options
    if options["truncate"] and request.HasField("tokens"):
        problem = "truncate belongs to texts, and the request has token ids: leave truncate out"
        raise InvalidInput(problem, field="truncate")
    request.truncation = options.get("side", pb.TRUNCATION_RIGHT) if options["truncate"] else pb.TRUNCATION_ERROR
