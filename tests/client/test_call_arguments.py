"""Calls refuse bad arguments before anything is sent."""

import io
import math
from collections import deque
from collections.abc import AsyncIterator, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from headwaiter_client import AsyncClient, Client, FakeEncoder, InvalidInput, SequenceTooLong
from headwaiter_client.calls.options import RequestOptions
from headwaiter_proto import encoder_pb2 as pb
from tests.support.client.client_runner import ClientRunner, RecordingEncoder


def test_one_text_gives_one_result_without_the_dimension_of_a_list(runner: ClientRunner) -> None:
    listed = runner.call(FakeEncoder(), "encode", ["fresh bread"], hidden=True, offsets=True)
    one = runner.call(FakeEncoder(), "encode", "fresh bread", hidden=True, offsets=True)
    assert one.pooled.shape == (8,)
    np.testing.assert_array_equal(one.pooled, listed.pooled[0])
    np.testing.assert_array_equal(one.hidden, listed.hidden[0])
    np.testing.assert_array_equal(one.offsets, listed.offsets[0])
    assert (one.index, one.length, one.failure, one.model) == (0, 4, None, listed.model)


def test_one_text_that_fails_in_a_partial_call_has_its_failure(runner: ClientRunner) -> None:
    one = runner.call(FakeEncoder(max_tokens=4), "encode", "much too long a text", partial=True)
    assert type(one.failure) is SequenceTooLong
    assert one.length == 0


class _Table:
    """Behaves as a DataFrame of pandas does: iterating it yields the names of its columns."""

    columns = ("title", "text")
    shape = (3, 2)

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)


class _Column:
    """Behaves as a Series of pandas does: it is no sequence of Python, and iterating it yields its values."""

    shape = (2,)

    def __iter__(self) -> Iterator[str]:
        return iter(["fresh bread", "rain"])


@pytest.mark.parametrize("method", ["encode", "encode_tokens", "encode_features", "classify", "encode_stream"])
def test_a_table_is_refused_and_a_column_is_not(method: str) -> None:
    fake = FakeEncoder()
    with pytest.raises(InvalidInput, match=r"_Table.*column"):
        getattr(Client(transport=fake), method)(_Table())
    assert fake.requests == []
    assert len(Client(transport=fake).encode(_Column()).lengths) == 2


@pytest.mark.parametrize(
    ("method", "sequences"),
    [
        ("encode_tokens", [[5, 6], np.ma.array([5, 6, 7], mask=[False, True, False])]),
        ("encode_tokens", np.ma.array([[5, 6], [5, 6]], mask=[[False, False], [False, True]])),
        ("encode_features", [[[1.0]], np.ma.array([[1.0]], mask=True)]),
        ("encode_features", [[[1.0]], [np.ma.array([1.0], mask=False), np.ma.array([1.0], mask=True)]]),
        ("encode_stream", [[5, 6], np.ma.array([5, 6, 7], mask=[False, True, False])]),
    ],
)
def test_masked_values_are_never_sent(method: str, sequences: Any) -> None:
    fake = FakeEncoder(feature_width=1)
    with pytest.raises(InvalidInput, match="1 values are masked") as caught:
        list(getattr(Client(transport=fake), method)(sequences))
    assert caught.value.sequence == 1
    sent = [request for request in fake.requests if isinstance(request, pb.EncodeRequest)]
    assert [list(request.tokens.lengths) for request in sent] == ([[2]] if method == "encode_stream" else [])


def test_a_masked_array_without_masked_values_is_sent() -> None:
    ids = np.ma.array([[5, 6]], mask=False)
    assert Client(transport=FakeEncoder()).encode_tokens(ids).lengths.tolist() == [2]


@pytest.mark.parametrize(
    "sequences",
    [
        "a text",
        None,
        b"a text",
        bytearray(b"a"),
        memoryview(b"a"),
        {"a text": 1},
        {"a text"},
        5,
        np.array("a text"),
        object(),
    ],
    ids=lambda sequences: type(sequences).__name__,
)
@pytest.mark.parametrize("method", ["classify", "encode_tokens", "encode_stream"])
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


async def _texts() -> AsyncIterator[str]:
    yield "a text"


@pytest.mark.parametrize("method", ["encode", "encode_tokens", "encode_features", "encode_stream"])
def test_an_async_iterable_is_refused_where_the_call_would_not_await_it(runner: ClientRunner, method: str) -> None:
    fake = FakeEncoder()
    if method != "encode_stream":
        with pytest.raises(InvalidInput, match="async_generator"):
            runner.call(fake, method, _texts())
    elif runner.client_class is AsyncClient:
        assert [one.length for one in runner.stream(fake, _texts())] == [4]  # type: ignore[arg-type]
    else:
        with pytest.raises(InvalidInput, match="async_generator"):
            runner.stream(fake, _texts())  # type: ignore[arg-type]
    assert method == "encode_stream" or not fake.requests


@pytest.mark.parametrize(
    "texts",
    [
        ("a b", "c"),
        np.array(["a b", "c"]),
        np.array(["a b", "c"], object),
        (text for text in ("a b", "c")),
        {"a b": 0, "c": 1}.keys(),
        deque(["a b", "c"]),
        io.StringIO("a b\nc"),
    ],
    ids=lambda texts: type(texts).__name__,
)
def test_texts_may_come_in_any_ordered_iterable(texts: Any) -> None:
    assert Client(transport=FakeEncoder()).encode(texts).lengths.tolist() == [4, 3]


@pytest.mark.parametrize("texts", [["a", b"b"], np.array([b"a", b"b"]), np.array([["a"], ["b"]]), [["a"]], [{"a": 1}]])
def test_a_text_that_is_not_a_str_is_named(texts: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        Client(transport=FakeEncoder()).encode(texts)
    assert caught.value.sequence == (1 if isinstance(texts, list) and texts[0] == "a" else 0)
    assert caught.value.field == "texts.values"


_NO_TIMEOUTS = (-1, 0, -0.0, math.nan, math.inf, True, False, "3", b"3", np.array([1.0, 2.0]), 10**400, np.True_, [3])


@pytest.mark.parametrize(
    ("method", "arguments", "timeout_s"),
    [
        *(("encode", [["a"]], timeout_s) for timeout_s in _NO_TIMEOUTS),
        ("encode_tokens", [[[1]]], 0),
        ("encode_features", [[[[1.0] * 8]]], 0),
        ("attend", ["a"], 0),
        ("models", [], 0),
        ("model", [], 0),
        ("is_serving", [], 0),
        ("wait_ready", [], 0),
        ("encode_stream", [["a"]], 0),
    ],
    ids=ascii,
)
def test_a_timeout_that_is_not_a_finite_number_above_0_is_invalid_input(
    runner: ClientRunner, method: str, arguments: list[Any], timeout_s: Any
) -> None:
    fake = RecordingEncoder()
    call = (runner.stream, fake) if method == "encode_stream" else (runner.call, fake, method)
    with pytest.raises(InvalidInput) as caught:
        call[0](*call[1:], *arguments, timeout_s=timeout_s)
    assert caught.value.field == "timeout_s"
    assert fake.calls == []


@pytest.mark.parametrize("timeout_s", [3, 0.5, np.float32(2), Fraction(1, 2), 1e300])
def test_a_timeout_may_be_any_finite_number_above_0(runner: ClientRunner, timeout_s: Any) -> None:
    assert runner.call(FakeEncoder(), "encode", ["a"], timeout_s=timeout_s).lengths.tolist() == [3]


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
    assert caught.value.__context__ is None  # One traceback, not two.
    assert fake.requests == []
