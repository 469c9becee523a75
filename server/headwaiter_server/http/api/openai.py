"""The paths of OpenAI's interface, which vLLM, infinity, Jina and Azure have too."""

import numpy as np
import orjson
from numpy.typing import NDArray

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.tasks import VECTORS
from headwaiter_server.http.api.operations import (
    COUNT,
    STRING,
    USAGE,
    VECTOR,
    Description,
    Operation,
    ServerFacts,
    array,
    float_rows,
    max_text_tokens,
    record,
    token_usage,
)
from headwaiter_server.http.api.shared_fields import (
    ADD_SPECIAL_TOKENS,
    CALL,
    EMBED_DTYPE,
    ENDIANNESS,
    INPUT_TYPE,
    NORMALIZE_LIKE_VLLM,
    ONE_SEQUENCE_OR_SEVERAL,
    REQUEST_ID,
    TASK,
    TRUNCATE_PROMPT_TOKENS,
    TRUNCATED_END,
    TRUNCATED_OR_NOT,
    TRUNCATION_SIDE,
    USER,
)
from headwaiter_server.http.api.vector_forms import (
    ABOUT_FORMS,
    FORM,
    FORMS_PLACE,
    RANGES,
    adapt_vectors,
    write_form,
)
from headwaiter_server.models.served_model import ModelFacts
from headwaiter_server.requests.fields import Field, Kind, Question, one_of
from headwaiter_server.requests.options import DIMENSIONS, NORMALIZE, PROMPT, TRUNCATION

ENCODING_FORMAT = Field("encoding_format", FORM, FORMS_PLACE, ABOUT_FORMS)
# The names of Jina, and of LlamaIndex's client for Jina.
_EMBEDDING_TYPE = Field("embedding_type", FORM, FORMS_PLACE, "The same as encoding_format.")
_ENCODING_TYPE = Field("encoding_type", FORM, FORMS_PLACE, "The same as encoding_format.")
_NORMALIZED = Field("normalized", NORMALIZE.kind, NORMALIZE.place, "The same as normalize.")
# An error names the words of both operations that have the field.
WHETHER_LATE_CHUNKING = one_of({True: None, False: None})
_LATE_CHUNKING = Field(
    "late_chunking", Kind(WHETHER_LATE_CHUNKING.read, {"enum": [False]}), about="false: each text is encoded by itself."
)
_MULTI_VECTOR = Field("return_multivector", one_of({False: None}), about="Only false: one vector for each text.")
_TOKENIZED = Field("return_tokenized_input", one_of({False: None}), about="Only false: the reply has no tokens.")
_TRUNCATE = Field(
    "truncate",
    one_of(TRUNCATED_END | TRUNCATED_OR_NOT),
    "truncation",
    "Texts that are too long are refused (NONE or false; default), or lose tokens: START, END, or true for the end.",
)
# The name of infinity and NIM.
_MODALITY = Field("modality", one_of({"text": None}), about="Only text.")


def write_embeddings(question: Question, reply: pb.EncodeResponse, vectors: NDArray[np.float32]) -> bytes:
    """Return the body of a reply with vectors [n, width]."""
    rows = write_form(question, vectors)
    data = [{"object": "embedding", "index": index, "embedding": row} for index, row in enumerate(rows)]
    return orjson.dumps({"object": "list", "data": data, "model": reply.model.name, "usage": token_usage(reply)})


def _write_pooled(question: Question, reply: pb.EncodeResponse) -> bytes:
    return write_embeddings(question, reply, float_rows(reply.pooled))


def _write_model(facts: ServerFacts, model: ModelFacts | None) -> bytes:
    assert model is not None
    return orjson.dumps(_model(facts, model))


def _write_models(facts: ServerFacts, _: ModelFacts | None) -> bytes:
    return orjson.dumps({"object": "list", "data": [_model(facts, each) for each in facts.models.values()]})


def _model(facts: ServerFacts, model: ModelFacts) -> dict[str, object]:
    return {
        "id": model.name,
        "object": "model",
        "created": facts.started_s,
        "owned_by": "headwaiter",
        "max_model_len": max_text_tokens(model.manifest),
    }


ENCODED_VECTOR = {"anyOf": [VECTOR, STRING]}
EMBEDDINGS = Operation(
    "Encode texts or token ids.",
    (
        ONE_SEQUENCE_OR_SEVERAL,
        *CALL,
        DIMENSIONS,
        ENCODING_FORMAT,
        RANGES,
        USER,
        PROMPT,
        TRUNCATION,
        NORMALIZE,
        INPUT_TYPE,
        TRUNCATE_PROMPT_TOKENS,
        TRUNCATION_SIDE,
        ADD_SPECIAL_TOKENS,
        NORMALIZE_LIKE_VLLM,
        EMBED_DTYPE,
        ENDIANNESS,
        REQUEST_ID,
        TASK,
        _TRUNCATE,
        _EMBEDDING_TYPE,
        _ENCODING_TYPE,
        _NORMALIZED,
        _LATE_CHUNKING,
        _MULTI_VECTOR,
        _TOKENIZED,
        _MODALITY,
    ),
    pb.OutputOptions(pooled=True),
    VECTORS,
    _write_pooled,
    record(object=STRING, data=array(record(index=COUNT, embedding=ENCODED_VECTOR)), model=STRING, usage=USAGE),
    adapt=adapt_vectors,
)
_MODEL = record(id=STRING, object=STRING, created=COUNT, owned_by=STRING, max_model_len=COUNT)
MODELS = Description(
    "List the models; max_model_len is the most tokens of a text.",
    _write_models,
    record(object=STRING, data=array(_MODEL)),
)
ONE_MODEL = Description("Describe a model.", _write_model, _MODEL, of_model=True)
