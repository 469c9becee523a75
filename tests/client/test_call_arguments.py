"""Calls refuse bad arguments before anything is sent."""

from typing import Any

import numpy as np
import pytest

from headwaiter_client import Client, FakeEncoder, InvalidInput
from headwaiter_client.calls.options import RequestOptions
from tests.client.client_runner import ClientRunner


@pytest.mark.parametrize("method", ["encode", "encode_stream"])
def test_a_single_str_instead_of_a_list_of_texts_is_refused(method: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        getattr(Client(transport=FakeEncoder()), method)("a text")
    assert caught.value.field == "texts"


@pytest.mark.parametrize("sequences", [None, b"a text", {"a text": 1}, {"a text"}, 5])
@pytest.mark.parametrize("method", ["encode", "encode_tokens", "encode_stream"])
def test_an_argument_that_is_not_a_list_of_sequences_is_refused(method: str, sequences: object) -> None:
    with pytest.raises(InvalidInput, match=type(sequences).__name__):
        getattr(Client(transport=FakeEncoder()), method)(sequences)


@pytest.mark.parametrize(
    ("method", "one", "advice"),
    [
        ("encode_tokens", [101, 5], "[ids]"),
        ("encode_tokens", np.ones(3, int), "[ids]"),
        ("encode_features", np.ones((2, 3)), "[rows]"),
    ],
)
def test_the_error_for_one_sequence_instead_of_a_list_shows_what_to_pass(method: str, one: Any, advice: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        getattr(Client(transport=FakeEncoder()), method)(one)
    assert advice in str(caught.value)


async def _progress(done: int, total: int) -> None:
    """A coroutine function, which the client would never await."""


@pytest.mark.parametrize(
    ("method", "arguments", "shown"),
    [
        ("encode", {"model": 3}, ["model", "int"]),
        ("encode", {"foo": 1}, ["foo", *RequestOptions.__annotations__]),
        ("encode_stream", {"progress": print}, ["progress", *RequestOptions.__annotations__]),
        ("encode", {"progress": 3}, ["progress", "int"]),
        ("encode_tokens", {"progress": _progress}, ["progress", "coroutine function"]),
        ("encode", {"timeout_s": "3"}, ["timeout_s", "str"]),
        ("encode_stream", {"timeout_s": "3"}, ["timeout_s", "str"]),
        ("attend", {"timeout_s": "3"}, ["timeout_s", "str"]),
        ("attend", {"request_id": 4}, ["request_id", "int"]),
        ("model", {}, ["name", "list"]),
    ],
)
def test_an_argument_of_the_wrong_type_is_a_type_error_and_nothing_is_sent(
    runner: ClientRunner, method: str, arguments: dict[str, Any], shown: list[str]
) -> None:
    fake = FakeEncoder()
    with pytest.raises(TypeError) as caught:
        runner.call(fake, method, [1], **arguments)
    assert all(fact in str(caught.value) for fact in shown)
    assert fake.requests == []
