"""Lists of any size, with both clients."""

import asyncio
import pickle
import time
from typing import Any

import numpy as np
import pytest

from headwaiter_client import (
    AsyncClient,
    Client,
    DeadlineExceeded,
    FakeEncoder,
    InvalidInput,
    MessageTooLarge,
    ModelChanged,
    Overloaded,
    SequenceTooLong,
    Unavailable,
)
from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.sequences import MAX_BYTES_OF_ONE_TEXT
from tests.support.client.client_runner import TEXTS, ClientRunner, RecordingEncoder
from tests.support.client.fake_server import Call, FakeServer


def test_a_list_of_any_size_is_answered_in_order(runner: ClientRunner) -> None:
    fake = RecordingEncoder()
    result = runner.call(fake, "encode", TEXTS, hidden=True, request_id="r")

    assert result.pooled.shape == (600, 8)
    for index in (0, 255, 256, 599):
        np.testing.assert_array_equal(
            result.pooled[index], runner.call(FakeEncoder(), "encode", [TEXTS[index]]).pooled[0]
        )
        assert result.hidden[index].shape == (5, 8)
    assert result.lengths.tolist() == [5] * 600
    assert result.request_id == "r"
    assert sorted(request.request_id for request in fake.requests) == ["r", "r.256", "r.512"]


def test_progress_is_reported_in_order(runner: ClientRunner) -> None:
    reported: list[tuple[int, int]] = []
    runner.call(FakeEncoder(), "encode", TEXTS, progress=lambda done, total: reported.append((done, total)))
    assert reported == [(256, 600), (512, 600), (600, 600)]
    runner.call(FakeEncoder(), "encode", ["a", "b"], progress=lambda done, total: reported.append((done, total)))
    assert reported[3:] == [(2, 2)]


def test_a_short_list_takes_one_call_and_a_client_asks_for_the_limits_once(runner: ClientRunner) -> None:
    fake = RecordingEncoder()
    runner.call(fake, "encode", TEXTS[:32])
    assert [name for name, _ in fake.calls] == ["Encode"]

    fake = RecordingEncoder()
    with Client(transport=fake) as client:
        client.encode(TEXTS[:33])
        client.encode(TEXTS[:33])
        list(client.encode_stream(TEXTS[:1]))
    assert [name for name, _ in fake.calls] == ["GetModel", "Encode", "Encode", "Encode"]


@pytest.mark.parametrize("limit", [{"max_request_tokens": 20}, {"max_request_sequences": 3}])
def test_a_request_above_the_servers_limits_is_sent_in_halves(runner: ClientRunner, limit: dict[str, Any]) -> None:
    fake = FakeEncoder(**limit)
    result = runner.call(fake, "encode", TEXTS[:30])
    np.testing.assert_array_equal(result.pooled, runner.call(FakeEncoder(), "encode", TEXTS[:30]).pooled)


def test_the_first_sequence_above_the_models_limit_is_named_by_its_index_in_the_list(runner: ClientRunner) -> None:
    texts = list(TEXTS)
    texts[300] = texts[550] = "word " * 30
    with pytest.raises(SequenceTooLong) as caught:
        runner.call(FakeEncoder(max_tokens=20), "encode", texts)
    assert (caught.value.sequence, caught.value.limit, caught.value.actual) == (300, 20, 32)
    assert "300" in str(caught.value)


def test_an_error_of_the_whole_request_is_raised_unchanged(runner: ClientRunner) -> None:
    fake = FakeEncoder()
    error = Overloaded("the queue is full", retry_after_s=1.5)
    fake.errors.append(error)
    with pytest.raises(Overloaded) as caught:
        runner.call(fake, "encode", ["a"])
    assert caught.value is error


@pytest.mark.parametrize("method", ["encode", "encode_tokens", "encode_features"])
@pytest.mark.parametrize("partial", [True, False])
def test_an_empty_list_is_refused_before_anything_is_sent(runner: ClientRunner, method: str, partial: bool) -> None:
    fake = RecordingEncoder()
    with pytest.raises(InvalidInput, match="empty"):
        runner.call(fake, method, iter([]), partial=partial)
    assert fake.calls == []


def test_a_partial_call_returns_the_good_sequences_and_lists_the_failures(runner: ClientRunner) -> None:
    texts = list(TEXTS)
    texts[3], texts[299], texts[300], texts[550] = "x" * (MAX_BYTES_OF_ONE_TEXT + 1), "word " * 30, "\ud800", None  # type: ignore[call-overload]
    result = runner.call(FakeEncoder(max_tokens=20), "encode", texts, partial=True, hidden=True)

    kinds = {index: type(error) for index, error in result.failures.items()}
    assert kinds == {3: InvalidInput, 299: SequenceTooLong, 300: InvalidInput, 550: InvalidInput}
    assert (result.failures[299].limit, result.failures[299].actual) == (20, 32)
    assert all(str(index) in str(error) for index, error in result.failures.items())
    assert all(error.sequence == index for index, error in result.failures.items())
    good = [index for index in range(600) if index not in result.failures]
    expected = runner.call(FakeEncoder(), "encode", [texts[index] for index in good])
    np.testing.assert_array_equal(result.pooled[good], expected.pooled)
    assert not result.pooled[sorted(result.failures)].any()
    assert [index for index, rows in enumerate(result.hidden) if not len(rows)] == [3, 299, 300, 550]


def test_a_text_that_cannot_be_sent_has_zeros_where_an_empty_text_has_a_vector(runner: ClientRunner) -> None:
    def encode(dtype: str) -> Any:
        texts = ["a b", None, ""]
        return runner.call(FakeEncoder(), "encode", texts, partial=True, hidden=True, offsets=True, dtype=dtype)

    for result in (encode("float32"), encode("int8")):
        assert (list(result.failures), result.lengths.tolist()) == ([1], [4, 0, 2])
        assert result.pooled.any(axis=1).tolist() == [True, False, True]
        assert [len(rows) for rows in result.hidden] == [4, 0, 2]
        assert [len(each) for each in result.offsets] == [4, 0, 2]
    scores = runner.call(FakeEncoder(labels=["x", "y"]), "classify", ["a b", None, ""], partial=True)
    assert (list(scores.failures), scores.lengths.tolist(), scores.best[1].label) == ([1], [4, 0, 2], "")
    assert not scores.scores[1].any()


def test_a_sequence_too_large_for_any_request_is_named_and_fails_alone_in_a_partial_call(runner: ClientRunner) -> None:
    texts = ["a b", "word " * 30, "c"]
    result = runner.call(FakeEncoder(max_request_tokens=20), "encode", texts, partial=True)
    assert result.lengths.tolist() == [4, 0, 3]
    with pytest.raises(InvalidInput) as caught:
        runner.call(FakeEncoder(max_request_tokens=20), "encode", texts, truncation="right")
    for failure in (result.failures[1], caught.value):
        assert (type(failure), failure.sequence, failure.limit, failure.actual) == (InvalidInput, 1, 20, 32)
        assert str(failure).startswith("sequence 1 ")


@pytest.mark.parametrize(("words", "limit", "actual"), [(3_500_000, 1 << 24, 17_500_000), (1, None, None)])
def test_a_sequence_too_large_for_any_message_is_named_with_the_servers_limit(
    runner: ClientRunner, words: int, limit: int | None, actual: int | None
) -> None:
    class SmallMessages(FakeEncoder):
        def unary(self, method: str, request: bytes, *rest: Any) -> bytes:
            if b"word" in request:
                raise MessageTooLarge("larger than max")
            return super().unary(method, request, *rest)

    with pytest.raises(MessageTooLarge) as caught:
        runner.call(SmallMessages(), "encode", ["a", "word " * words])
    assert (caught.value.sequence, caught.value.limit) == (1, limit)
    assert "sequence 1 " in str(caught.value)
    assert caught.value.actual == pytest.approx(actual, abs=200)


def test_int8_vectors_of_a_long_list_keep_their_scales(runner: ClientRunner) -> None:
    exact = runner.call(FakeEncoder(), "encode", TEXTS, hidden=True)
    rough = runner.call(FakeEncoder(), "encode", TEXTS, hidden=True, dtype="int8")
    assert rough.pooled_int8.shape == (600, 8)
    np.testing.assert_array_equal(rough.pooled, rough.pooled_int8.to_float32())
    np.testing.assert_array_equal(rough.hidden[599], rough.hidden_int8[599].to_float32())
    assert rough.pooled is rough.pooled  # Decoded once.
    np.testing.assert_allclose(rough.pooled_int8.to_float32(), exact.pooled, atol=0.5 / 127 + 1e-6)
    np.testing.assert_allclose(
        rough.hidden_int8[599].to_float32(), exact.hidden[599], atol=np.abs(exact.hidden[599]).max() / 254 + 1e-6
    )


def _change_last_model(**changes: Any) -> RecordingEncoder:
    """Return a server that answers the last request of a list with another model."""

    def change(request: pb.EncodeRequest, reply: pb.EncodeResponse) -> None:
        if request.request_id == "r.512":
            reply.model.MergeFrom(pb.ModelRef(**changes))

    return RecordingEncoder(change)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    ("other", "shown"),
    [({"digest": "another", "results_digest": "other"}, "another"), ({"precision": pb.PRECISION_INT8}, "int8")],
)
def test_vectors_of_two_models_or_precisions_are_never_mixed(
    runner: ClientRunner, other: dict[str, Any], shown: str
) -> None:
    with pytest.raises(ModelChanged, match=shown) as caught:
        runner.call(_change_last_model(**other), "encode", TEXTS, request_id="r")
    assert caught.value.request_id == "r"
    with pytest.raises(ModelChanged):
        runner.stream(_change_last_model(**other), TEXTS, request_id="r")


@pytest.mark.usefixtures("patient")
def test_vectors_of_two_exports_of_one_model_may_be_mixed(runner: ClientRunner) -> None:
    fake = _change_last_model(digest="another")
    assert len(runner.call(fake, "encode", TEXTS, request_id="r").lengths) == len(TEXTS)


def test_a_late_request_of_a_list_quotes_the_timeout_of_the_caller(call: Call, server: FakeServer) -> None:
    def stop_answering(done: int, _total: int) -> None:
        server.released.clear()

    with pytest.raises(DeadlineExceeded, match=r"^no answer within 0\.7 s"):
        call(server, "encode", TEXTS, timeout_s=0.7, progress=stop_answering, connect={"max_in_flight": 1})


def test_late_limits_of_a_list_quote_the_timeout_of_the_caller(call: Call, server: FakeServer) -> None:
    server.released.clear()
    with pytest.raises(DeadlineExceeded, match=r"^no answer within 0\.3 s"):
        call(server, "encode", TEXTS, timeout_s=0.3)


def test_the_clients_timeout_is_for_each_request_and_a_calls_own_is_for_the_whole_call(runner: ClientRunner) -> None:
    fake = RecordingEncoder()
    runner.call(fake, "encode", TEXTS, connect={"timeout_s": 7.0})
    assert {timeout_s for _, timeout_s in fake.calls} == {7.0}

    fake = RecordingEncoder()
    runner.call(fake, "encode", TEXTS, timeout_s=5.0)
    assert fake.calls[0] == ("GetModel", 5.0)
    assert all(0 < timeout_s < 5.0 for _, timeout_s in fake.calls[1:])

    fake = RecordingEncoder()
    runner.stream(fake, TEXTS, timeout_s=5.0)
    assert {timeout_s for _, timeout_s in fake.calls} == {5.0}


class _OutageEncoder(FakeEncoder):
    """Answers the first two requests of a list, and fails all later ones."""

    def unary(self, method: str, request: bytes, timeout_s: float, request_id: str | None = None, *scope: Any) -> bytes:
        if request_id and request_id not in ("r", "r.256"):
            raise Unavailable("the server is gone", request_id=request_id)
        return super().unary(method, request, timeout_s, request_id, *scope)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_the_error_of_a_partial_list_carries_the_rows_that_are_finished(runner: ClientRunner, dtype: str) -> None:
    texts = [*TEXTS[:511], "long " * 600, *TEXTS]
    options: dict[str, Any] = {"partial": True, "hidden": True, "offsets": True, "dtype": dtype}
    with pytest.raises(Unavailable) as caught:
        runner.call(_OutageEncoder(), "encode", texts, request_id="r", connect={"max_in_flight": 1}, **options)
    finished = caught.value.finished
    expected = runner.call(FakeEncoder(), "encode", texts[:512], **options)
    assert finished.lengths.tolist() == [*expected.lengths.tolist(), *[0] * 600]
    np.testing.assert_array_equal(finished.pooled[:512], expected.pooled)
    assert not finished.pooled[512:].any()
    assert [len(rows) for rows in finished.hidden] == [*map(len, expected.hidden), *[0] * 600]
    assert [len(rows) for rows in finished.offsets] == [*map(len, expected.offsets), *[0] * 600]
    assert sorted(finished.failures) == list(range(511, 1112))
    assert type(finished.failures[511]) is SequenceTooLong
    assert all(type(finished.failures[index]) is Unavailable for index in range(512, 1112))
    assert finished.timings.batches == expected.timings.batches
    assert pickle.loads(pickle.dumps(caught.value)).finished.lengths.tolist() == finished.lengths.tolist()


def test_results_that_cannot_be_joined_do_not_replace_the_error_of_the_call(runner: ClientRunner) -> None:
    class DifferentReplies(_OutageEncoder):
        def unary(self, method: str, request: bytes, *rest: Any) -> bytes:
            reply = super().unary(method, request, *rest)
            if b"r.256" not in request:
                return reply
            response = pb.EncodeResponse.FromString(reply)
            response.ClearField("pooled")
            return response.SerializeToString()

    connect = {"max_in_flight": 1}
    with pytest.raises(Unavailable) as caught:
        runner.call(DifferentReplies(), "encode", TEXTS, partial=True, request_id="r", hidden=True, connect=connect)
    assert caught.value.finished is None


def test_the_error_of_a_partial_classification_carries_the_scores_that_are_finished(runner: ClientRunner) -> None:
    fake, connect = _OutageEncoder(labels=["no", "yes"]), {"max_in_flight": 1}
    with pytest.raises(Unavailable) as caught:
        runner.call(fake, "classify", TEXTS, partial=True, request_id="r", connect=connect)
    assert caught.value.finished.scores.shape == (600, 2)
    assert sorted(caught.value.finished.failures) == list(range(512, 600))
    assert caught.value.finished.labels == ("no", "yes")


@pytest.mark.parametrize(("texts", "partial"), [(TEXTS, False), (TEXTS[:1], True)])
def test_an_error_carries_no_rows_if_the_call_is_not_partial_or_nothing_is_finished(
    runner: ClientRunner, texts: list[str], partial: bool
) -> None:
    with pytest.raises(Unavailable) as caught:
        runner.call(_OutageEncoder(), "encode", texts, partial=partial, request_id="r" if len(texts) > 1 else "x")
    assert caught.value.finished is None


def test_a_sequence_that_cannot_be_sent_fails_a_long_list_before_anything_is_sent(runner: ClientRunner) -> None:
    fake = RecordingEncoder()
    with pytest.raises(InvalidInput) as caught:
        runner.call(fake, "encode", [*TEXTS, None])
    assert caught.value.sequence == 600
    assert fake.calls == []


async def test_a_list_of_100_000_texts_holds_up_other_tasks_for_milliseconds_only() -> None:
    texts = [f"the bread number {number} is fresh" for number in range(100_000)]
    longest_s = 0.0

    async def watch() -> None:
        nonlocal longest_s
        while True:
            begin_s = time.perf_counter()
            await asyncio.sleep(0)
            longest_s = max(longest_s, time.perf_counter() - begin_s)

    async with AsyncClient(transport=_CannedTransport()) as client:
        await client.encode(texts[:40])  # Asks for the limits.
        watcher = asyncio.create_task(watch())
        encoding = await client.encode(texts)
        watcher.cancel()
    assert encoding.pooled is not None
    assert encoding.pooled.shape == (100_000, 8)
    # It takes about 10 ms; other programs may run on the machine. Without pauses, it took 300 ms.
    assert longest_s < 0.1


class _CannedTransport:
    """Answers with zeros at once, so that a test measures the client alone."""

    def __init__(self) -> None:
        self._fake = FakeEncoder()

    async def unary(self, method: str, request: bytes, timeout_s: float, request_id: str | None = None) -> bytes:
        if not method.endswith("/Encode"):
            return self._fake.unary(method, request, timeout_s, request_id)
        count = len(pb.EncodeRequest.FromString(request).texts.values)
        pooled = pb.Tensor(dtype=pb.DATA_TYPE_FLOAT32, shape=[count, 8], data=bytes(count * 32))
        return pb.EncodeResponse(lengths=[5] * count, pooled=pooled).SerializeToString()

    async def close(self) -> None:
        self._fake.close()
