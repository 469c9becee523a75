"""`tokenize` and `count_tokens`, with both clients."""

from collections.abc import Callable
from typing import Any

import pytest

from headwaiter_client import (
    Client,
    FakeEncoder,
    HeadwaiterError,
    InvalidInput,
    ModelNotFound,
    OutputMissing,
    SequenceTooLong,
)
from headwaiter_proto import encoder_pb2 as pb
from tests.support.client.client_runner import TEXTS, ClientRunner, RecordingEncoder


def test_a_list_of_any_size_is_tokenized_in_order(runner: ClientRunner) -> None:
    fake = RecordingEncoder()
    found = runner.call(fake, "tokenize", TEXTS, offsets=True, strings=True, request_id="r")
    assert found.lengths.tolist() == [5] * 600
    assert found.strings[599] == ("[CLS]", "text", "number", "599", "[SEP]")
    assert found.offsets[599].tolist() == [[0, 0], [0, 4], [5, 11], [12, 15], [0, 0]]
    assert [len(ids) for ids in found.ids] == [5] * 600
    assert found.ids[0][[0, 1, 2, 4]].tolist() == found.ids[599][[0, 1, 2, 4]].tolist()
    assert found.ids[0][3] != found.ids[599][3]
    assert (found.max_tokens, found.model.name, found.request_id, found.failures) == (512, "fake", "r", {})
    assert {name for name, _ in fake.calls} == {"GetModel", "Tokenize"}
    assert sorted(request.request_id for request in fake.requests) == ["r", "r.256", "r.512"]


def test_tokens_are_counted(runner: ClientRunner) -> None:
    fake = RecordingEncoder()
    assert runner.call(fake, "count_tokens", ["a", "", "a b c"]) == [3, 2, 5]
    assert [name for name, _ in fake.calls] == ["Tokenize"]
    assert runner.call(FakeEncoder(), "count_tokens", ["a"], prompt="query") == [4]


def test_a_text_keeps_all_tokens_unless_the_call_truncates_it(runner: ClientRunner) -> None:
    texts = ["a", "a b c d"]
    whole = runner.call(FakeEncoder(max_tokens=4), "tokenize", texts)
    assert (whole.lengths.tolist(), whole.truncated, whole.max_tokens) == ([3, 6], {}, 4)
    cut = runner.call(FakeEncoder(max_tokens=4), "tokenize", texts, truncation="left")
    assert (cut.ids[1].tolist(), cut.truncated) == (whole.ids[1][[0, 3, 4, 5]].tolist(), {1: 6})
    with pytest.raises(SequenceTooLong) as refused:
        runner.call(FakeEncoder(max_tokens=4), "tokenize", texts, truncation="error")
    assert (refused.value.sequence, refused.value.limit, refused.value.actual) == (1, 4, 6)


def test_requests_stay_within_the_tokens_of_a_request(runner: ClientRunner) -> None:
    fake = RecordingEncoder(max_tokens=4, max_request_tokens=40)
    texts = ["a b c d e f g h"] * 40
    assert runner.call(fake, "count_tokens", texts) == [10] * 40
    # No request is sent twice: the client knows that texts are not cut.
    assert [name for name, _ in fake.calls].count("Tokenize") == len(fake.requests) == 40
    with pytest.raises(InvalidInput, match="too large for a request by itself") as refused:
        runner.call(FakeEncoder(max_request_tokens=40), "count_tokens", ["a", "a " * 50])
    assert (refused.value.sequence, refused.value.limit) == (1, 40)


def test_the_result_has_only_what_the_call_asks_for(runner: ClientRunner) -> None:
    found = runner.call(FakeEncoder(), "tokenize", ["a"])
    for name in ("offsets", "strings"):
        with pytest.raises(OutputMissing, match=f"{name}=True"):
            getattr(found, name)


def test_arrays_can_be_written_to(runner: ClientRunner) -> None:
    found = runner.call(FakeEncoder(), "tokenize", ["a b", "c"], offsets=True)
    for array in (*found.ids, *found.offsets, found.lengths):
        array[0] = 7


def test_a_client_has_defaults_for_its_calls(runner: ClientRunner) -> None:
    fake = FakeEncoder(model="words")
    defaults = {"model": "words", "priority": "bulk"}
    assert runner.call(fake, "tokenize", ["a"], connect=defaults).model.name == "words"
    assert fake.requests == [
        pb.TokenizeRequest(model="words", texts=pb.Texts(values=["a"]), request_id=fake.requests[0].request_id)
    ]
    with pytest.raises(ModelNotFound):
        runner.call(FakeEncoder(model="words"), "count_tokens", ["a"], model="other", connect=defaults)


@pytest.mark.parametrize(
    ("texts", "options", "error"),
    [
        ("a", {}, InvalidInput),
        ([], {}, InvalidInput),
        (["a", 1], {}, InvalidInput),
        ([("a", "b")], {}, InvalidInput),
        (["a"], {"prompt": "none"}, InvalidInput),
        (["a"], {"truncation": "middle"}, InvalidInput),
        (["a"], {"strings": 1}, TypeError),
        (["a"], {"hidden": True}, TypeError),
    ],
)
def test_wrong_arguments_are_refused(runner: ClientRunner, texts: Any, options: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        runner.call(FakeEncoder(), "tokenize", texts, **options)


def test_a_model_without_texts_is_refused(runner: ClientRunner) -> None:
    with pytest.raises(InvalidInput, match="has a tokenizer") as refused:
        runner.call(FakeEncoder(vocabulary_size=0), "count_tokens", ["a"])
    assert refused.value.field == "model"


def test_a_request_without_an_input_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no input"):
        FakeEncoder().unary("/headwaiter.v1.Encoder/Tokenize", b"", 1.0)


@pytest.mark.parametrize(
    "change",
    [
        lambda reply: reply.tokens.lengths.pop(),
        lambda reply: setattr(reply.tokens, "data", bytes(8)),
        lambda reply: reply.strings.pop(),
        lambda reply: (reply.offsets[0].begin.pop(), reply.offsets[0].end.pop()),
    ],
    ids=["a length less", "two ids", "a string less", "an offset less"],
)
def test_a_reply_that_contradicts_itself_is_refused(change: Callable[[pb.TokenizeResponse], None]) -> None:
    class Wrong(FakeEncoder):
        def unary(self, *arguments: Any) -> bytes:
            reply = pb.TokenizeResponse.FromString(super().unary(*arguments))
            change(reply)
            return reply.SerializeToString()

    with Client(transport=Wrong()) as client, pytest.raises(HeadwaiterError, match="cannot be read"):
        client.tokenize(["a b", "c"], offsets=True, strings=True)
