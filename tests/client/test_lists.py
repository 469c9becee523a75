"""Lists of any size, with both clients."""

import re
from typing import Any

import numpy as np
import pytest

from headwaiter_client import (
    AsyncClient,
    Client,
    FakeEncoder,
    InvalidInput,
    MessageTooLarge,
    ModelChanged,
    Overloaded,
    SequenceTooLong,
)
from headwaiter_client.transport.grpc_transport import Flight
from headwaiter_proto import encoder_pb2 as pb
from tests.client.drive import TEXTS, Drive, Recorder


def test_a_list_of_any_size_is_answered_in_order(drive: Drive) -> None:
    fake = Recorder()
    result = drive.call(fake, "encode", TEXTS, hidden=True, request_id="r")

    assert result.pooled.shape == (600, 8)
    for index in (0, 255, 256, 599):
        np.testing.assert_array_equal(
            result.pooled[index], drive.call(FakeEncoder(), "encode", [TEXTS[index]]).pooled[0]
        )
        assert result.hidden[index].shape == (5, 8)
    assert result.lengths.tolist() == [5] * 600
    assert result.request_id == "r"
    assert sorted(request.request_id for request in _encodes(fake)) == ["r", "r.256", "r.512"]


@pytest.mark.parametrize(
    ("method", "sequences"),
    [("encode_tokens", [[1, n] for n in range(300)]), ("encode_features", [[[0.5, n]] * 2 for n in range(300)])],
)
def test_ids_and_features_are_split_too(drive: Drive, method: str, sequences: list[Any]) -> None:
    fake = FakeEncoder(feature_width=2)
    result = drive.call(fake, method, iter(sequences))
    assert len(fake.requests) == 2
    np.testing.assert_array_equal(
        result.pooled[299], drive.call(FakeEncoder(feature_width=2), method, sequences[299:]).pooled[0]
    )


def test_progress_is_told_in_order(drive: Drive) -> None:
    told: list[tuple[int, int]] = []
    drive.call(FakeEncoder(), "encode", TEXTS, progress=lambda done, total: told.append((done, total)))
    assert told == [(256, 600), (512, 600), (600, 600)]
    drive.call(FakeEncoder(), "encode", ["a", "b"], progress=lambda done, total: told.append((done, total)))
    assert told[3:] == [(2, 2)]


def test_a_short_list_takes_one_call_and_a_client_asks_for_limits_once(drive: Drive) -> None:
    fake = Recorder()
    drive.call(fake, "encode", TEXTS[:32])
    assert _methods(fake) == ["Encode"]

    fake = Recorder()
    with Client(transport=fake) as client:
        client.encode(TEXTS[:33])
        client.encode(TEXTS[:33])
        list(client.encode_stream(TEXTS[:1]))
    assert _methods(fake) == ["GetModel", "Encode", "Encode", "Encode"]


@pytest.mark.parametrize("limit", [{"max_request_tokens": 20}, {"max_request_sequences": 3}])
def test_what_a_server_does_not_take_together_goes_in_halves(drive: Drive, limit: dict[str, Any]) -> None:
    fake = FakeEncoder(**limit)
    result = drive.call(fake, "encode", TEXTS[:30])
    np.testing.assert_array_equal(result.pooled, drive.call(FakeEncoder(), "encode", TEXTS[:30]).pooled)


def test_a_message_too_large_for_the_server_goes_in_halves(drive: Drive) -> None:
    fake = FakeEncoder()
    fake.errors.append(MessageTooLarge("larger than max"))
    assert len(drive.call(fake, "encode", ["a", "b", "c"]).pooled) == 3
    assert [list(request.texts.values) for request in _encodes(fake)] == [["a"], ["b", "c"]]


def test_a_sequence_that_is_too_much_by_itself_is_named_as_the_caller_counts(drive: Drive) -> None:
    texts = [*TEXTS[:500], "word " * 20]
    with pytest.raises(SequenceTooLong, match=r"^sequence 500 has 22 tokens") as caught:
        drive.call(FakeEncoder(max_tokens=10), "encode", texts)
    assert (caught.value.sequence, caught.value.limit, caught.value.actual) == (500, 10, 22)


def test_the_first_failure_of_the_list_is_raised_whichever_comes_first(drive: Drive) -> None:
    texts = list(TEXTS)
    texts[300] = texts[550] = "  "
    with pytest.raises(InvalidInput, match=r"^sequence 300 is empty"):
        drive.call(FakeEncoder(), "encode", texts)


def test_a_failure_of_the_whole_is_raised_as_it_came(drive: Drive) -> None:
    fake = FakeEncoder()
    error = Overloaded("the queue is full", retry_after_s=1.5)
    fake.errors.append(error)
    with pytest.raises(Overloaded) as caught:
        drive.call(fake, "encode", ["a"])
    assert caught.value is error


def test_nothing_is_sent_of_a_list_with_a_sequence_that_cannot_be(drive: Drive) -> None:
    fake = FakeEncoder()
    with pytest.raises(InvalidInput, match=r"^sequence 599 is of type NoneType"):
        drive.call(fake, "encode", [*TEXTS[:599], None])
    assert not fake.requests


def test_a_list_of_nothing_is_for_the_server_to_judge(drive: Drive) -> None:
    with pytest.raises(InvalidInput, match=r"^the request has no sequences: send at least one$"):
        drive.call(FakeEncoder(), "encode", [])


def test_a_partial_call_answers_the_good_and_names_the_others(drive: Drive) -> None:
    texts = list(TEXTS)
    texts[3], texts[299], texts[300], texts[550] = "", "word " * 30, "\ud800", None  # type: ignore[call-overload]
    result = drive.call(FakeEncoder(max_tokens=20), "encode", texts, partial=True, hidden=True)

    assert {index: type(error) for index, error in sorted(result.failures.items())} == {
        3: InvalidInput,
        299: SequenceTooLong,
        300: InvalidInput,
        550: InvalidInput,
    }
    assert str(result.failures[299]).startswith("sequence 299 has 32 tokens")
    assert str(result.failures[300]).startswith("sequence 300 is not Unicode text")
    assert all(error.sequence == index for index, error in result.failures.items())
    good = [index for index in range(600) if index not in result.failures]
    expected = drive.call(FakeEncoder(), "encode", [texts[index] for index in good])
    np.testing.assert_array_equal(result.pooled[good], expected.pooled)
    assert not result.pooled[sorted(result.failures)].any()
    assert [index for index, rows in enumerate(result.hidden) if not len(rows)] == [3, 299, 300, 550]


def test_a_sequence_too_much_for_a_request_fails_alone_in_a_partial_call(drive: Drive) -> None:
    fake = FakeEncoder(max_request_tokens=20)
    result = drive.call(fake, "encode", ["a b", "word " * 30, "c"], partial=True)
    (failure,) = result.failures.values()
    assert (type(failure), failure.sequence, failure.limit, failure.actual) == (InvalidInput, 1, 20, 32)
    assert result.lengths.tolist() == [4, 0, 3]


def test_a_text_too_much_for_a_request_is_named_with_what_to_do(drive: Drive) -> None:
    with pytest.raises(InvalidInput) as caught:
        drive.call(FakeEncoder(max_request_tokens=20), "encode", ["a b", "word " * 30], truncation="right")
    assert all(text in str(caught.value) for text in ("sequence 1", "32 tokens", "at most 20"))
    assert (caught.value.sequence, caught.value.limit, caught.value.actual) == (1, 20, 32)


@pytest.mark.parametrize(("words", "limit", "actual"), [(3_500_000, 1 << 24, 17_500_000), (1, None, None)])
def test_a_sequence_that_fits_no_message_is_named_with_the_servers_limit(
    drive: Drive, words: int, limit: int | None, actual: int | None
) -> None:
    class Narrow(FakeEncoder):
        def unary(
            self,
            method: str,
            request: bytes,
            timeout_s: float,
            request_id: str | None = None,
            flight: Flight | None = None,
        ) -> bytes:
            if b"word" in request:
                raise MessageTooLarge("larger than max")
            return super().unary(method, request, timeout_s, request_id, flight)

    with pytest.raises(MessageTooLarge, match=r"^sequence 1 is too much .* by itself: larger than max; ") as caught:
        drive.call(Narrow(), "encode", ["a", "word " * words])
    assert (caught.value.sequence, caught.value.limit) == (1, limit)
    assert caught.value.actual == pytest.approx(actual, abs=200)


def test_int8_vectors_of_a_long_list_keep_their_scales(drive: Drive) -> None:
    exact = drive.call(FakeEncoder(), "encode", TEXTS, hidden=True)
    rough = drive.call(FakeEncoder(), "encode", TEXTS, hidden=True, dtype="int8")
    assert (rough.pooled, rough.hidden) == (None, None)
    assert rough.pooled_int8.shape == (600, 8)
    np.testing.assert_allclose(rough.pooled_int8.to_float32(), exact.pooled, atol=0.5 / 127 + 1e-6)
    np.testing.assert_allclose(
        rough.hidden_int8[599].to_float32(), exact.hidden[599], atol=np.abs(exact.hidden[599]).max() / 254 + 1e-6
    )


def test_cut_texts_and_offsets_of_a_long_list_keep_their_places(drive: Drive) -> None:
    texts = list(TEXTS)
    texts[300] = "one two three four"
    result = drive.call(FakeEncoder(max_tokens=5), "encode", texts, truncation="left", offsets=True)
    assert result.truncated == {300: 6}
    assert result.lengths.tolist() == [5] * 600
    assert result.offsets[300].tolist() == [[0, 0], [4, 7], [8, 13], [14, 18], [0, 0]]


@pytest.mark.parametrize(
    ("other", "named"), [({"digest": "another"}, "fake another in fp32"), ({"precision": pb.PRECISION_INT8}, "in int8")]
)
def test_vectors_of_two_models_or_precisions_are_never_mixed(drive: Drive, other: dict[str, Any], named: str) -> None:
    def change(request: pb.EncodeRequest, reply: pb.EncodeResponse) -> None:
        if request.request_id == "r.512":
            reply.model.MergeFrom(pb.ModelRef(**other))

    with pytest.raises(ModelChanged, match=rf"{named}\b.* do not mix: call again") as caught:
        drive.call(Recorder(change), "encode", TEXTS, request_id="r")
    assert caught.value.request_id == "r"
    with pytest.raises(ModelChanged):
        drive.stream(Recorder(change), TEXTS, request_id="r")


def test_each_request_has_the_clients_deadline_and_a_calls_own_is_for_all_of_it(drive: Drive) -> None:
    fake = Recorder()
    drive.call(fake, "encode", TEXTS, connect={"timeout_s": 7.0})
    assert {timeout_s for _, timeout_s in fake.calls} == {7.0}

    fake = Recorder()
    drive.call(fake, "encode", TEXTS, timeout_s=5.0)
    assert fake.calls[0] == ("GetModel", 5.0)
    assert all(0 < timeout_s < 5.0 for _, timeout_s in fake.calls[1:])

    fake = Recorder()
    drive.stream(fake, TEXTS, timeout_s=5.0)
    assert {timeout_s for _, timeout_s in fake.calls} == {5.0}


def test_a_prompt_is_for_texts(drive: Drive) -> None:
    fake = FakeEncoder()
    drive.call(fake, "encode", ["a"], prompt="query")
    assert _encodes(fake)[0].texts.prompt == "query"
    with pytest.raises(InvalidInput, match="prompt is for texts; these are tokens") as caught:
        drive.call(fake, "encode_tokens", [[1]], prompt="query")
    assert caught.value.field == "texts.prompt"


@pytest.mark.parametrize("method", ["encode", "encode_stream"])
def test_one_str_in_place_of_a_list_of_texts_is_refused(method: str) -> None:
    with pytest.raises(InvalidInput, match="pass a list of texts"):
        getattr(Client(transport=FakeEncoder()), method)("a text")


@pytest.mark.parametrize("sequences", [None, b"a text", {"a text": 1}, {"a text"}, 5])
@pytest.mark.parametrize("method", ["encode", "encode_tokens", "encode_stream"])
def test_what_is_no_list_of_sequences_is_refused(method: str, sequences: object) -> None:
    kind = type(sequences).__name__
    with pytest.raises(InvalidInput, match=f"^the sequences are of type {kind}; pass a list of them$"):
        getattr(Client(transport=FakeEncoder()), method)(sequences)


@pytest.mark.parametrize(
    ("method", "one", "advice"),
    [
        ("encode_tokens", [101, 5], "[ids]"),
        ("encode_tokens", np.ones(3, int), "[ids]"),
        ("encode_features", np.ones((2, 3)), "[rows]"),
    ],
)
def test_one_sequence_in_place_of_a_list_is_told_what_to_pass(method: str, one: Any, advice: str) -> None:
    with pytest.raises(InvalidInput, match=f"; for one sequence pass {re.escape(advice)}$"):
        getattr(Client(transport=FakeEncoder()), method)(one)


async def _progress(done: int, total: int) -> None:
    """A callback that nothing would await."""


@pytest.mark.parametrize(
    ("method", "arguments", "sentence"),
    [
        ("encode", {"model": 3}, "model is of type int; it must be a str"),
        ("encode", {"foo": 1}, "there is no option foo here; there are pooled, hidden, dtype"),
        ("encode_stream", {"progress": print}, "there is no option progress here; there are pooled, hidden, dtype"),
        ("encode", {"progress": 3}, "progress is of type int; it must be a function of two numbers, done and total"),
        ("encode_tokens", {"progress": _progress}, "progress is a coroutine function, which nothing would await"),
        ("encode", {"timeout_s": "3"}, "timeout_s is of type str; it must be a number of seconds or None"),
        ("encode_stream", {"timeout_s": "3"}, "timeout_s is of type str; it must be a number of seconds or None"),
        ("attend", {"timeout_s": "3"}, "timeout_s is of type str; it must be a number of seconds or None"),
        ("attend", {"request_id": 4}, "request_id is of type int; it must be a str"),
        ("model", {}, "name is of type list; it must be a str"),
    ],
)
def test_an_argument_of_another_type_is_a_type_error_and_nothing_is_sent(
    drive: Drive, method: str, arguments: dict[str, Any], sentence: str
) -> None:
    fake = FakeEncoder()
    with pytest.raises(TypeError, match=f"^{sentence}"):
        drive.call(fake, method, [1], **arguments)
    assert fake.requests == []


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_client_that_may_have_no_request_on_its_way_is_none(kind: Any) -> None:
    with pytest.raises(ValueError, match=r"^max_in_flight is 0; it must be 1 at least$"):
        kind(transport=FakeEncoder(), max_in_flight=0)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_client_needs_an_address_where_nothing_else_carries_its_calls(kind: Any) -> None:
    with pytest.raises(ValueError, match=r"^address is empty"):
        kind()


def _encodes(fake: FakeEncoder) -> list[pb.EncodeRequest]:
    return [request for request in fake.requests if isinstance(request, pb.EncodeRequest)]


def _methods(fake: Recorder) -> list[str]:
    return [name for name, _ in fake.calls]
