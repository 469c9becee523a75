"""OpenAI's form of requests becomes an EncodeRequest, and an EncodeResponse becomes OpenAI's form of replies."""

import json
from typing import Any

import numpy as np
import pytest

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import (
    HeadwaiterError,
    InvalidInput,
    ModelNotFound,
    Overloaded,
    SequenceTooLong,
    Unavailable,
)
from headwaiter_proto.rules.status import http_status_of
from headwaiter_server.requests.fields import Question
from tests.support.server.questions import adapt, answer, ask, operations

PATH = "/v1/embeddings"


def read(**fields: Any) -> Question:
    return ask(PATH, fields).question


@pytest.mark.parametrize(
    ("value", "texts"), [("a b", ["a b"]), (["a b"], ["a b"]), (["a", " "], ["a", " "]), (["é", "\x00"], ["é", "\x00"])]
)
def test_texts_become_texts(value: Any, texts: list[str]) -> None:
    request = read(input=value, model="m").encode
    assert (request.model, list(request.texts.values)) == ("m", texts)


@pytest.mark.parametrize(
    ("value", "sequences"), [([5, 0, -1], [[5, 0, -1]]), ([[5], [6, 2**40]], [[5], [6, 2**40]]), ([[]], [[]])]
)
def test_token_ids_become_one_sequence_or_several(value: Any, sequences: list[list[int]]) -> None:
    tokens = read(input=value).encode.tokens
    assert tokens.dtype == pb.DATA_TYPE_INT64
    assert list(tokens.lengths) == [len(sequence) for sequence in sequences]
    assert np.frombuffer(tokens.data, "<i8").tolist() == [each for sequence in sequences for each in sequence]


def test_options_have_the_names_of_openai_and_of_headwaiter() -> None:
    given = read(
        input="a",
        dimensions=3,
        encoding_format="base64",
        user="u",
        prompt="query",
        truncation="left",
        priority="bulk",
        timeout_s=1.5,
    )
    assert given.options == {"forms": ["base64"]}
    assert given.encode == pb.EncodeRequest(
        texts=pb.Texts(values=["a"], prompt="query"),
        output=pb.OutputOptions(pooled=True, dimensions=3),
        truncation=pb.TRUNCATION_LEFT,
        priority=pb.PRIORITY_BULK,
        timeout_s=1.5,
    )
    plain = read(input="a", model=None, dimensions=None)
    assert not plain.options
    assert plain.encode == pb.EncodeRequest(texts=pb.Texts(values=["a"]), output=pb.OutputOptions(pooled=True))


def test_options_of_jina_and_vllm_are_honoured() -> None:
    given = read(
        input="a",
        task="retrieval.query",
        normalized=False,
        embedding_type="base64",
        late_chunking=False,
        add_special_tokens=True,
    )
    assert given.options == {"forms": ["base64"]}
    assert given.encode == pb.EncodeRequest(
        texts=pb.Texts(values=["a"], prompt="retrieval.query"),
        output=pb.OutputOptions(pooled=True, normalize=False),
    )


@pytest.mark.parametrize(
    ("fields", "changed"),
    [
        ({"truncate": "NONE", "input_type": "query"}, {"truncation": pb.TRUNCATION_ERROR}),
        ({"truncate": "START", "input_type": "passage"}, {"truncation": pb.TRUNCATION_LEFT}),
        ({"truncate": "END", "truncation": "right"}, {"truncation": pb.TRUNCATION_RIGHT}),
        ({"truncate": False}, {"truncation": pb.TRUNCATION_ERROR}),
        ({"truncate": True}, {"truncation": pb.TRUNCATION_RIGHT}),
        ({"return_multivector": False, "return_tokenized_input": False, "encoding_type": "float"}, {}),
        # All fields of infinity's client.
        ({"encoding_format": "float", "user": None, "dimensions": 0, "modality": "text"}, {}),
        ({"embed_dtype": "float32", "endianness": "native", "truncation_side": None}, {}),
        ({"endianness": "little", "truncation_side": "left"}, {}),
        ({"priority": 0}, {"priority": pb.PRIORITY_INTERACTIVE}),
        ({"use_activation": True}, {"output": pb.OutputOptions(pooled=True, normalize=True)}),
        ({"use_activation": False}, {"output": pb.OutputOptions(pooled=True, normalize=False)}),
        ({"request_id": "r-1"}, {"request_id": "r-1"}),
        ({"cache_salt": None, "padding": None}, {}),
    ],
)
def test_what_other_servers_clients_send_is_honoured_or_changes_nothing(
    fields: dict[str, Any], changed: dict[str, Any]
) -> None:
    plain: dict[str, Any] = {"texts": pb.Texts(values=["a"]), "output": pb.OutputOptions(pooled=True)}
    assert read(input="a", **fields).encode == pb.EncodeRequest(**(plain | changed))


@pytest.mark.parametrize(
    ("fields", "truncation"),
    [
        ({"truncate_prompt_tokens": -1}, pb.TRUNCATION_RIGHT),
        ({"truncate_prompt_tokens": 512}, pb.TRUNCATION_RIGHT),
        ({"truncate_prompt_tokens": 513, "truncation_side": "right"}, pb.TRUNCATION_RIGHT),
        ({"truncate_prompt_tokens": 512, "truncation_side": "left"}, pb.TRUNCATION_LEFT),
        ({"truncate_prompt_tokens": -1, "truncate": "END"}, pb.TRUNCATION_RIGHT),
    ],
)
def test_texts_are_truncated_to_the_models_own_maximum(fields: dict[str, Any], truncation: int) -> None:
    asked = ask(PATH, {"input": "a", **fields})
    adapt(asked, max_text_tokens=512)
    assert asked.question.encode.truncation == truncation
    # The field that an error of truncation names, for example with token ids.
    assert asked.question.names["truncation"] == "truncate_prompt_tokens"


@pytest.mark.parametrize("tokens", [0, 1, 511])
def test_texts_are_not_truncated_below_the_models_own_maximum(tokens: int) -> None:
    with pytest.raises(InvalidInput) as refused:
        adapt(ask(PATH, {"input": "a", "truncate_prompt_tokens": tokens}), max_text_tokens=512)
    error = refused.value
    assert (error.field, error.limit, error.actual) == ("truncate_prompt_tokens", 512, tokens)


@pytest.mark.parametrize("fields", [{"truncation": "left"}, {"truncate": "NONE"}, {"truncate": False}])
def test_truncations_that_contradict_each_other_are_refused(fields: dict[str, Any]) -> None:
    asked = ask(PATH, {"input": "a", "truncate_prompt_tokens": -1, **fields})
    with pytest.raises(InvalidInput, match="contradict") as refused:
        adapt(asked, max_text_tokens=512)
    assert refused.value.field == "truncate_prompt_tokens"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"", None),
        (b"{", None),
        (b"[1]", None),
        (b'{"input": "a", "input": NaN}', None),
        (b"[" * 100_000, None),
        (b'{"input": "\xff"}', None),
        (b'{"input": [18446744073709551615]}', "input"),
        (b'{"input": "a", "timeout_s": 1e999}', None),
        (b'{"input": [1], "late_chunking": true}', "input"),
        (b'{"input": "a", "late_chunking": true, "truncate": "END"}', "truncate"),
        (b'{"input": "a", "truncate_prompt_tokens": -2}', "truncate_prompt_tokens"),
        (b'{"input": "a", "truncation": "left", "truncate": "END"}', "truncate"),
        (b'{"input": "a", "normalize": true, "use_activation": false}', "use_activation"),
        (b'{"input": [1], "prompt": "query"}', "prompt"),
    ],
)
def test_a_wrong_body_is_refused_with_the_name_of_the_field(body: bytes, field: str | None) -> None:
    with pytest.raises(InvalidInput) as caught:
        ask(PATH, body)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("value", "index", "words"),
    [
        ([[1], [2, "a"]], 1, "token ids"),
        (["a", 1], 1, "a number, and the first is a text"),
    ],
)
def test_a_wrong_sequence_is_named(value: Any, index: int, words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as refusal:
        read(input=value)
    assert (refusal.value.sequence, refusal.value.field) == (index, "input")


def test_a_path_names_the_model_and_a_body_may_repeat_it() -> None:
    for body in ({}, {"model": ""}, {"model": "m"}):
        assert ask(PATH, {"input": "a", **body}, "m").question.encode.model == "m"
    with pytest.raises(InvalidInput) as refused:
        ask(PATH, {"input": "a", "model": "other"}, "m")
    assert refused.value.field == "model"


def test_the_reply_has_openais_form() -> None:
    assert answer(ask(PATH, {"input": ["a", "b"]}), [[1, 2], [3, 4]], lengths=[3, 4]) == {
        "object": "list",
        "data": [
            {"object": "embedding", "index": 0, "embedding": [1, 2]},
            {"object": "embedding", "index": 1, "embedding": [3, 4]},
        ],
        "model": "m",
        "usage": {"prompt_tokens": 7, "total_tokens": 7},
    }


def written(error: HeadwaiterError, path: str = PATH) -> Any:
    operation = min(operations(path), key=lambda each: sum(field.required for field in each.fields))
    return json.loads(operation.errors.write(error, http_status_of(error), operation.fields, {}))["error"]


@pytest.mark.parametrize(
    ("error", "kind", "code", "param"),
    [
        (InvalidInput("x", field="texts", sequence=1), "invalid_request_error", "invalid_input", "input"),
        (InvalidInput("x", field="output.dimensions"), "invalid_request_error", "invalid_input", "dimensions"),
        (SequenceTooLong("x", field="texts"), "invalid_request_error", "context_length_exceeded", "input"),
        (ModelNotFound("x", field="model"), "invalid_request_error", "model_not_found", "model"),
        (Overloaded("x"), "rate_limit_error", "rate_limit_exceeded", None),
        (Unavailable("x"), "server_error", "unavailable", None),
        (HeadwaiterError("x"), "server_error", "error_reason_unspecified", None),
    ],
)
def test_an_error_has_a_type_a_code_and_the_field(
    error: HeadwaiterError, kind: str, code: str, param: str | None
) -> None:
    content = written(error)
    assert (content["message"], content["type"], content["code"], content["param"]) == (str(error), kind, code, param)
    assert content.get("sequence") == error.sequence


@pytest.mark.parametrize(
    ("path", "field", "name"),
    [
        (PATH, "output.dimensions", "dimensions"),
        ("/v2/embed", "output.dimensions", "output_dimension"),
        ("/v2/embed", "texts.values", "texts"),
        ("/v1/rerank", "pairs.first", "query"),
        ("/v1/rerank", "pairs", "documents"),
        ("/score", "pairs.second", "text_2"),
    ],
)
def test_an_error_names_the_field_of_the_body(path: str, field: str, name: str) -> None:
    content = written(InvalidInput(f"{field} is 9", field=field), path)
    assert content["param"] == name
    assert ("." in field) == (content["message"] == f"{name} is 9")
