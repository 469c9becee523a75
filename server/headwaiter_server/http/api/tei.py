"""The paths of Text Embeddings Inference (TEI)."""

from dataclasses import dataclass
from typing import Any

import orjson

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import InvalidInput
from headwaiter_proto.rules.sparse import entries_of
from headwaiter_proto.rules.tasks import CLASSIFIES, RERANKS, ROWS, SCORES, SPARSE_VECTORS, VECTORS
from headwaiter_server.http.api.errors import TEI_ERRORS
from headwaiter_server.http.api.operations import (
    COUNT,
    SCORE,
    STRING,
    VECTOR,
    Description,
    Operation,
    ServerFacts,
    array,
    float_rows,
    json_rows,
    max_text_tokens,
    ranking,
    record,
    token_rows,
)
from headwaiter_server.http.api.sequences import DOCUMENTS, INPUT, ONE_TEXT, TEXTS
from headwaiter_server.http.api.shared_fields import (
    CALL,
    DIRECTION,
    PROMPT_NAME,
    QUERY_TEXT,
    TOP_N,
    TRUNCATE,
    truncate_like_tei,
    with_parameters,
)
from headwaiter_server.models.served_model import ModelFacts
from headwaiter_server.requests.fields import BOOLEAN, WHOLE_NUMBER, Field, Kind, Question, group, kind_of, one_of
from headwaiter_server.requests.options import DIMENSIONS, NORMALIZE, RAW_SCORES

_INPUTS = Field("inputs", INPUT, "input", "Texts, or token ids of the model's tokenizer.", required=True)
_UNIT_LENGTH = Field(
    "normalize", NORMALIZE.kind, NORMALIZE.place, "Whether vectors have unit length; default: true.", default=True
)
_TRUNCATING = (TRUNCATE, DIRECTION)
# The names of huggingface_hub.
_NO_FUNCTION = Field("function_to_apply", one_of({"none": True}), "output.raw_scores", "none: scores are logits.")
_TOP_K = Field("top_k", WHOLE_NUMBER, "options.top_n", "Most labels of each sequence.")


def _write_embed(_: Question, reply: pb.EncodeResponse) -> bytes:
    return orjson.dumps(list(json_rows(float_rows(reply.pooled))))


def _write_embed_all(_: Question, reply: pb.EncodeResponse) -> bytes:
    return orjson.dumps(token_rows(reply))


def _write_embed_sparse(_: Question, reply: pb.EncodeResponse) -> bytes:
    vectors = entries_of(reply.sparse)
    return orjson.dumps([[{"index": index, "value": value} for index, value in each.tolist()] for each in vectors])


def _write_similarity(_: Question, reply: pb.EncodeResponse) -> bytes:
    *others, source = float_rows(reply.pooled)
    return orjson.dumps([float(source @ other) for other in others])


def _write_rerank(question: Question, reply: pb.ClassifyResponse) -> bytes:
    with_text = question.options.get("with_texts")
    return orjson.dumps(
        [
            {"index": index, "score": score, **({"text": text} if with_text else {})}
            for index, score, text in ranking(question, reply)
        ]
    )


def _write_predict(question: Question, reply: pb.ClassifyResponse) -> bytes:
    labels = reply.head.labels
    rows: list[list[dict[str, Any]]] = []
    for scores in float_rows(reply.scores).tolist():
        best_first = sorted(zip(labels, scores, strict=True), key=lambda each: -each[1])
        best_first = best_first[: question.options.get("top_n")]
        rows.append([{"label": label, "score": score} for label, score in best_first])
    return orjson.dumps(rows[0] if question.options["inputs"].single else rows)


@dataclass(frozen=True, slots=True)
class _Inputs:
    """The sequences to classify.

    Attributes:
        single: whether the body has one sequence, without a list of sequences around it.
        texts: one text or two of each sequence.
    """

    single: bool
    texts: list[tuple[str, ...]]


def _read_predict(value: Any, name: str) -> _Inputs:
    wanted = "send a text, a pair of texts in a list, or a list of lists of one text or two"
    single = not (isinstance(value, list) and value and isinstance(value[0], list))
    sequences = [value] if single else [each if isinstance(each, list) else [] for each in value]
    found: list[tuple[str, ...]] = []
    for index, sequence in enumerate(sequences):
        texts = sequence if isinstance(sequence, list) else [sequence]
        if not 1 <= len(texts) <= 2 or not all(type(each) is str for each in texts):
            count = f"{kind_of(sequence)} of {len(texts)} values" if isinstance(sequence, list) else kind_of(sequence)
            raise InvalidInput(f"of {name} is {count}: {wanted}", field=name, sequence=index)
        if found and len(texts) != len(found[0]):
            problem = f"of {name} and sequence 0 are not both pairs or both single texts"
            raise InvalidInput(f"{problem}: send them in two requests", field=name, sequence=index)
        found.append(tuple(texts))
    return _Inputs(single, found)


def _finish_predict(question: Question) -> None:
    truncate_like_tei(question)
    request, sequences = question.encode, question.options["inputs"].texts
    if len(sequences[0]) == 1:
        request.texts.values.extend(text for (text,) in sequences)
    else:
        request.pairs.first.extend(first for first, _ in sequences)
        request.pairs.second.extend(second for _, second in sequences)


def _finish_similarity(question: Question) -> None:
    truncate_like_tei(question)
    # At the end, so that errors of sentences have their index.
    question.encode.texts.values.extend(question.options["source"].values)


def _write_info(facts: ServerFacts, model: ModelFacts | None) -> bytes:
    assert model is not None
    manifest = model.manifest
    longest = max_text_tokens(manifest)
    return orjson.dumps(
        {
            "model_id": model.name,
            "model_sha": model.results_digest,
            "model_dtype": pb.Precision.Name(model.precision).removeprefix("PRECISION_").lower(),
            "model_type": _model_type(model),
            "max_concurrent_requests": facts.max_calls,
            "max_input_length": longest,
            "max_batch_tokens": facts.max_tokens,
            "max_client_batch_size": facts.max_sequences,
            "auto_truncate": False,
            "version": facts.version,
        }
    )


def _model_type(model: ModelFacts) -> dict[str, Any]:
    manifest = model.manifest
    if not SCORES.suits(manifest):
        pooling = "splade" if manifest.sparse else pb.Pooling.Name(manifest.pooling).removeprefix("POOLING_").lower()
        return {"embedding": {"pooling": pooling}}
    labels = list(manifest.head.labels)
    names = {
        "id2label": {str(i): label for i, label in enumerate(labels)},
        "label2id": {label: i for i, label in enumerate(labels)},
    }
    return {"reranker" if RERANKS.has(manifest) else "classifier": names}


_NUMBERS = array(VECTOR)
_LABELS = array(record(label=STRING, score=SCORE))
_PREDICT = Kind(
    _read_predict,
    {
        "anyOf": [
            STRING,
            {**array(STRING), "minItems": 1, "maxItems": 2},
            *({**array({**array(STRING), "minItems": size, "maxItems": size}), "minItems": 1} for size in (1, 2)),
        ],
        "description": "a text, a pair of texts, or a list of lists of one text or two",
    },
)
EMBED = Operation(
    "Encode texts or token ids.",
    with_parameters(_INPUTS, *CALL, nested=(_UNIT_LENGTH, PROMPT_NAME, DIMENSIONS, *_TRUNCATING)),
    pb.OutputOptions(pooled=True),
    VECTORS,
    _write_embed,
    _NUMBERS,
    TEI_ERRORS,
    truncate_like_tei,
)
EMBED_SPARSE = Operation(
    "Encode texts or token ids as sparse vectors: the numbers that are not 0, each with its token id.",
    with_parameters(_INPUTS, *CALL, nested=(PROMPT_NAME, *_TRUNCATING)),
    pb.OutputOptions(sparse=True),
    SPARSE_VECTORS,
    _write_embed_sparse,
    array(array(record(index=COUNT, value=SCORE))),
    TEI_ERRORS,
    truncate_like_tei,
)
EMBED_ALL = Operation(
    "Encode texts or token ids, and return a row for each token.",
    with_parameters(_INPUTS, *CALL, nested=(PROMPT_NAME, *_TRUNCATING)),
    pb.OutputOptions(hidden=True),
    ROWS,
    _write_embed_all,
    array(_NUMBERS),
    TEI_ERRORS,
    truncate_like_tei,
)
SIMILARITY = Operation(
    "Return the cosine similarity of a text with each of several texts.",
    with_parameters(
        group(
            "inputs",
            (
                Field("source_sentence", ONE_TEXT, "options.source", "The text to compare with.", required=True),
                Field("sentences", TEXTS, "input", "The texts to compare.", required=True),
            ),
            required=True,
        ),
        *CALL,
        nested=(PROMPT_NAME, *_TRUNCATING),
    ),
    pb.OutputOptions(pooled=True, normalize=True),
    VECTORS,
    _write_similarity,
    VECTOR,
    TEI_ERRORS,
    _finish_similarity,
)
RERANK = Operation(
    "Rank texts by a query, the highest score first.",
    with_parameters(
        QUERY_TEXT,
        Field("texts", DOCUMENTS, "pairs.second", "The texts to rank.", required=True),
        *CALL,
        RAW_SCORES,
        Field("return_text", BOOLEAN, "options.with_texts", "Whether the reply repeats the texts."),
        TOP_N,
        nested=_TRUNCATING,
    ),
    pb.OutputOptions(scores=True, logits=True),
    RERANKS,
    _write_rerank,
    array(record(index=COUNT, score=SCORE)),
    TEI_ERRORS,
    truncate_like_tei,
)
PREDICT = Operation(
    "Classify texts or pairs of texts, the highest score first.",
    with_parameters(
        Field("inputs", _PREDICT, "options.inputs", "A text, a pair, or a list of them.", required=True),
        *CALL,
        nested=(RAW_SCORES, _NO_FUNCTION, _TOP_K, *_TRUNCATING),
    ),
    pb.OutputOptions(scores=True),
    CLASSIFIES,
    _write_predict,
    {"anyOf": [_LABELS, array(_LABELS)]},
    TEI_ERRORS,
    _finish_predict,
)
INFO = Description(
    "Describe a model and the limits of requests.",
    _write_info,
    record(model_id=STRING, model_type={"type": "object"}, max_input_length=COUNT, version=STRING),
    of_model=True,
    errors=TEI_ERRORS,
)
