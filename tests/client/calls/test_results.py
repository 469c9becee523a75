"""The results that are read from replies, without a network."""

import pickle
from typing import Any

import numpy as np
import pytest

from headwaiter_client import Encoding, HeadwaiterError, ModelRef, OutputMissing, SequenceTooLong, Timings
from headwaiter_client.calls.results import join_results, read_encoding, split_by_sequence
from headwaiter_proto import encoder_pb2 as pb
from tests.support.client.fake_server import MODEL, encode_response
from tests.support.client.request_builders import texts_request, tokens_request


def _floats(shape: list[int], size_bytes: int) -> pb.Tensor:
    return pb.Tensor(dtype=pb.DATA_TYPE_FLOAT32, shape=shape, data=bytes(size_bytes))


def _int8(values: Any, scales: list[float]) -> pb.Tensor:
    array = np.array(values, np.int8)
    return pb.Tensor(dtype=pb.DATA_TYPE_INT8, shape=array.shape, data=array.tobytes(), row_scales=scales)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_reply_becomes_arrays_with_one_row_per_sequence_and_one_row_per_token(dtype: str) -> None:
    reply = encode_response(tokens_request([[1, 2], [3], [4, 5, 6]], hidden=True, dtype=dtype))
    result = _encoding(reply, round_trip_s=20.0)

    assert result.pooled.tolist() == [[0, 0, 0], [0.5, 0.5, 0.5], [1, 1, 1]]
    assert [rows.tolist() for rows in result.hidden] == [[[0] * 3] * 2, [[1] * 3], [[2] * 3] * 3]
    assert {rows.dtype for rows in (result.pooled, *result.hidden)} == {np.dtype(dtype)}
    assert result.lengths.tolist() == [2, 1, 3]
    assert result.model == ModelRef(MODEL.name, MODEL.digest)
    assert result.request_id == reply.request_id
    assert result.timings == Timings(
        round_trip_s=20, tokenize_s=1, queue_s=2, assemble_s=3, compute_s=4, respond_s=5, total_s=15, batches=2
    )


@pytest.mark.parametrize(
    ("output", "options", "advice"),
    [
        ("hidden", {}, "hidden=True"),
        ("offsets", {}, "offsets=True"),
        ("pooled_int8", {}, 'dtype="int8"'),
        ("hidden_int8", {"hidden": True}, 'hidden_dtype="int8"'),
        ("hidden_int8", {}, 'hidden_dtype="int8"'),
        ("pooled", {"pooled": False, "hidden": True}, 'pooling="mean"'),
        ("pooled_int8", {"pooled": False, "hidden": True}, 'dtype="int8"'),
    ],
)
def test_an_output_that_is_missing_raises_an_error_that_names_the_option(
    output: str, options: dict[str, Any], advice: str
) -> None:
    result = _encoding(encode_response(texts_request(["a"], **options)))
    for each in (result, *split_by_sequence(result, first=0)):
        with pytest.raises(OutputMissing) as missing:
            getattr(each, output)
        assert isinstance(missing.value, HeadwaiterError)
        assert advice in str(missing.value)
        assert not hasattr(each, output)


def test_a_result_survives_pickling() -> None:
    result = _encoding(encode_response(tokens_request([[1, 2], [3]], hidden=True)))
    copy: Encoding = pickle.loads(pickle.dumps(result))
    np.testing.assert_array_equal(copy.pooled, result.pooled)
    assert (copy.timings, copy.model) == (result.timings, result.model)


def test_int8_vectors_have_one_scale_per_row() -> None:
    reply = pb.EncodeResponse(lengths=[2, 1])
    reply.pooled.CopyFrom(_int8([[127, -127], [1, 2]], [0.5, 2.0]))
    reply.hidden.CopyFrom(_int8([[1, 0], [2, 0], [3, 0]], [1.0, 10.0, 100.0]))
    result = _encoding(reply)

    assert result.pooled_int8.to_float32().tolist() == [[63.5, -63.5], [2, 4]]
    assert result.pooled_int8[1].to_float32().tolist() == [2, 4]
    assert repr(result.pooled_int8) == "<Int8Array [2, 2]>"
    assert len(result.pooled_int8) == 2
    assert result.pooled_int8.to_float32().dtype == np.float32
    assert [rows.to_float32().tolist() for rows in result.hidden_int8] == [[[1, 0], [20, 0]], [[300, 0]]]


def test_offsets_truncations_and_failures_have_the_indices_of_the_callers_list() -> None:
    reply = pb.EncodeResponse(
        request_id="r",
        lengths=[2, 0, 1],
        offsets=[pb.Offsets(begin=[0, 4], end=[3, 9]), pb.Offsets(), pb.Offsets(begin=[0], end=[1])],
        truncated=[pb.Truncated(sequence=2, original_tokens=9)],
        failures=[
            pb.Failure(
                sequence=1,
                reason=pb.SEQUENCE_TOO_LONG,
                message="sequence 1 has 99 tokens, not 10",
                metadata={"sequence": "1", "field": "texts", "limit": "10", "actual": "99"},
            )
        ],
    )
    result = _encoding(reply, first=100)

    assert [pairs.tolist() for pairs in result.offsets] == [[[0, 3], [4, 9]], [], [[0, 1]]]
    assert result.truncated == {102: 9}
    (failure,) = result.failures.values()
    assert type(failure) is SequenceTooLong
    assert (failure.sequence, failure.field, failure.limit, failure.actual) == (101, "texts", 10, 99)
    assert failure.request_id == "r"
    assert str(failure) == "sequence 101 has 99 tokens, not 10"


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("sequence 1 has 99 tokens, not 10", "sequence 101 has 99 tokens, not 10"),
        ("a reworded message: text 1 is too long", "sequence 101 failed: a reworded message: text 1 is too long"),
        ("sequence 10 is no prefix", "sequence 101 failed: sequence 10 is no prefix"),
        ("", "sequence 101 failed: "),
    ],
)
def test_the_index_in_the_callers_list_comes_from_the_facts_and_not_from_the_message(message: str, shown: str) -> None:
    reply = pb.EncodeResponse(
        lengths=[2, 0], failures=[pb.Failure(sequence=1, reason=pb.SEQUENCE_TOO_LONG, message=message)]
    )
    (failure,) = _encoding(reply, first=100).failures.values()
    assert (failure.sequence, str(failure)) == (101, shown)


@pytest.mark.parametrize("reason", [pb.ERROR_REASON_UNSPECIFIED, 99])
def test_a_failure_with_an_unknown_reason_is_a_headwaiter_error(reason: Any) -> None:
    reply = pb.EncodeResponse(lengths=[0], failures=[pb.Failure(reason=reason, message="on strike")])
    failure = _encoding(reply).failures[0]
    assert (type(failure), str(failure), failure.sequence) == (HeadwaiterError, "sequence 0 failed: on strike", 0)


def test_results_of_several_requests_are_joined_in_order() -> None:
    first = _encoding(encode_response(tokens_request([[1, 2], [3]], hidden=True)), round_trip_s=1.0)
    second = _encoding(encode_response(tokens_request([[4]], hidden=True)), first=2, round_trip_s=2.0)
    result = join_results([first, second])

    assert result.pooled.tolist() == [[0] * 3, [0.5] * 3, [0] * 3]
    assert [rows.tolist() for rows in result.hidden] == [[[0] * 3] * 2, [[1] * 3], [[0] * 3]]
    assert result.lengths.tolist() == [2, 1, 1]
    assert (result.timings.round_trip_s, result.timings.compute_s, result.timings.batches) == (3.0, 8.0, 4)
    assert not any(hasattr(result, output) for output in ("pooled_int8", "hidden_int8", "offsets"))


def test_the_repr_of_a_result_shows_its_contents() -> None:
    result = _encoding(encode_response(texts_request(["one two", "three"], request_id="r")))
    shown = repr(result)
    facts = ("2 sequences", "7 tokens", "pooled [2, 3]", "0 truncated", "0 failed", "model 'tiny'", "request_id 'r'")
    assert all(fact in shown for fact in facts)
    hidden = _encoding(encode_response(texts_request(["one"], pooled=False, hidden=True)))
    assert "pooled None" in repr(hidden)


def test_the_repr_of_a_stream_result_leaves_the_arrays_out() -> None:
    (one,) = split_by_sequence(_encoding(encode_response(texts_request(["one two"]))), first=7)
    model = ModelRef(MODEL.name, MODEL.digest)
    assert repr(one) == (f"SequenceEncoding(index=7, length=4, original_tokens=None, failure=None, model={model!r})")


INCONSISTENT = {
    "lengths": pb.EncodeResponse(lengths=[1, 1]),
    "rows": pb.EncodeResponse(lengths=[1], pooled=_floats([3, 1], 12)),
    "bytes": pb.EncodeResponse(lengths=[1], pooled=_floats([2, 3], 4)),
    "hidden rows": pb.EncodeResponse(lengths=[1], hidden=_floats([2, 1], 8)),
    "no rank": pb.EncodeResponse(lengths=[1], hidden=_floats([], 4)),
    "no scales": pb.EncodeResponse(lengths=[1], pooled=pb.Tensor(dtype=pb.DATA_TYPE_INT8, shape=[1, 1], data=b"\0")),
    "integers": pb.EncodeResponse(lengths=[1], pooled=pb.Tensor(dtype=pb.DATA_TYPE_INT64, shape=[1, 1], data=bytes(8))),
    "no pairs": pb.EncodeResponse(lengths=[1], offsets=[pb.Offsets(begin=[1], end=[1, 2])]),
    "offsets": pb.EncodeResponse(lengths=[1], offsets=[pb.Offsets()] * 2),
    "length of offsets": pb.EncodeResponse(lengths=[1], offsets=[pb.Offsets(begin=[0, 1], end=[1, 2])]),
    "pooled of rank 1": pb.EncodeResponse(lengths=[1], pooled=_floats([1], 4)),
    "pooled of rank 3": pb.EncodeResponse(lengths=[1], pooled=_floats([1, 2, 3], 24)),
    "hidden of rank 3": pb.EncodeResponse(lengths=[1], hidden=_floats([1, 1, 3], 12)),
    "int8 of rank 3": pb.EncodeResponse(lengths=[1], pooled=_int8([[[1], [2]]], [1.0])),
    "truncated sequence": pb.EncodeResponse(lengths=[1], truncated=[pb.Truncated(sequence=1)]),
    "failed sequence": pb.EncodeResponse(lengths=[1], failures=[pb.Failure(sequence=1)]),
}


@pytest.mark.parametrize("reply", INCONSISTENT.values(), ids=INCONSISTENT)
def test_a_reply_with_inconsistent_arrays_is_an_error(reply: pb.EncodeResponse) -> None:
    reply.request_id = "r"
    with pytest.raises(HeadwaiterError) as caught:
        _encoding(reply, count=1)
    assert type(caught.value) is HeadwaiterError
    assert caught.value.request_id == "r"


@pytest.mark.parametrize(
    "other",
    [{"hidden": True, "pooled": False}, {}, {"hidden": True, "dtype": "float16"}],
    ids=["no pooled", "no hidden", "another type"],
)
def test_replies_with_different_outputs_are_not_joined(other: dict[str, Any]) -> None:
    first = _encoding(encode_response(tokens_request([[1, 2]], hidden=True)))
    second = _encoding(encode_response(tokens_request([[3]], **other)), first=1)
    with pytest.raises(HeadwaiterError, match="differ in") as caught:
        join_results([first, second])
    assert caught.value.request_id == first.request_id


def test_replies_of_different_widths_are_not_joined() -> None:
    parts = [_encoding(pb.EncodeResponse(lengths=[1], pooled=_floats([1, width], 4 * width))) for width in (3, 4)]
    with pytest.raises(HeadwaiterError, match="differ in pooled"):
        join_results(parts)


def _encoding(
    reply: pb.EncodeResponse, *, first: int = 0, count: int | None = None, round_trip_s: float = 0.0
) -> Encoding:
    return read_encoding(reply, first, len(reply.lengths) if count is None else count, round_trip_s)
