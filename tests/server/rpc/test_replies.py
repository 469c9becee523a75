"""Replies hold the answer in the form that was asked for."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_server.batching.job import Outcome
from headwaiter_server.config import Settings
from headwaiter_server.errors import InvalidInput
from headwaiter_server.rpc.replies import encode_reply, model_reply, wants_hidden
from tests.server.rpc.stand_ins import CALIBRATION, model

POOLED = [np.array([3, 4], np.float32), np.array([0, 2], np.float32)]
HIDDEN: list[NDArray[np.generic]] = [np.array([[1, 2]], np.float32), np.array([[3, 4], [5, 6]], np.float32)]


def _reply(folder: Path, output: pb.OutputOptions, *, normalized: bool = True, scale: float = 1) -> pb.EncodeResponse:
    outcome = Outcome(
        [vector * np.float32(scale) for vector in POOLED], HIDDEN if output.hidden else None, 0.0, 0.0, 0.0, 1
    )
    return encode_reply(pb.EncodeRequest(output=output), "r-1", [1, 2], outcome, model(folder, normalized=normalized))


def _values(tensor: pb.Tensor) -> list[list[float]]:
    stored = {pb.DATA_TYPE_FLOAT32: "<f4", pb.DATA_TYPE_FLOAT16: "<f2"}[tensor.dtype]
    rows: list[list[float]] = np.frombuffer(tensor.data, stored).reshape(tuple(tensor.shape)).tolist()
    return rows


def test_a_reply_names_the_request_the_weights_and_the_lengths(tmp_path: Path) -> None:
    reply = _reply(tmp_path, pb.OutputOptions())
    assert reply.request_id == "r-1"
    assert (reply.model.name, reply.model.digest) == ("tiny", "ab" * 32)
    assert list(reply.lengths) == [1, 2]


@pytest.mark.parametrize(
    ("output", "pooled", "hidden"),
    [
        (pb.OutputOptions(), True, False),
        (pb.OutputOptions(pooled=True), True, False),
        (pb.OutputOptions(hidden=True), False, True),
        (pb.OutputOptions(pooled=True, hidden=True), True, True),
    ],
)
def test_a_reply_holds_what_was_asked_for_and_pooled_vectors_by_default(
    output: pb.OutputOptions, pooled: bool, hidden: bool, tmp_path: Path
) -> None:
    reply = _reply(tmp_path, output)
    assert (reply.HasField("pooled"), reply.HasField("hidden")) == (pooled, hidden)
    assert wants_hidden(pb.EncodeRequest(output=output), model(tmp_path)) is hidden


def test_a_model_without_pooling_gives_hidden_rows_without_being_asked(tmp_path: Path) -> None:
    unpooled = model(tmp_path, pooling=pb.POOLING_NONE)
    outcome = Outcome(None, HIDDEN, 0.0, 0.0, 0.0, 1)
    assert wants_hidden(pb.EncodeRequest(), unpooled)
    reply = encode_reply(pb.EncodeRequest(), "r-1", [1, 2], outcome, unpooled)
    assert not reply.HasField("pooled")
    assert _values(reply.hidden) == [[1, 2], [3, 4], [5, 6]]


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize(
    ("output", "asked"),
    [
        (pb.OutputOptions(), None),
        (pb.OutputOptions(normalize=True), True),
        (pb.OutputOptions(normalize=False), False),
    ],
)
def test_pooled_vectors_have_unit_length_where_the_request_or_else_the_model_says_so(
    normalized: bool, output: pb.OutputOptions, asked: bool | None, tmp_path: Path
) -> None:
    first, second = _values(_reply(tmp_path, output, normalized=normalized).pooled)
    unit = normalized if asked is None else asked
    assert first == pytest.approx([0.6, 0.8] if unit else [3, 4])
    assert second == pytest.approx([0, 1] if unit else [0, 2])


def test_hidden_rows_are_never_scaled(tmp_path: Path) -> None:
    reply = _reply(tmp_path, pb.OutputOptions(hidden=True, normalize=True))
    assert _values(reply.hidden) == [[1, 2], [3, 4], [5, 6]]


def test_float16_is_given_where_it_was_asked_for(tmp_path: Path) -> None:
    output = pb.OutputOptions(pooled=True, hidden=True, dtype=pb.DATA_TYPE_FLOAT16, normalize=False)
    reply = _reply(tmp_path, output)
    assert reply.pooled.dtype == reply.hidden.dtype == pb.DATA_TYPE_FLOAT16
    assert (list(reply.pooled.shape), list(reply.hidden.shape)) == ([2, 2], [3, 2])
    assert len(reply.pooled.data) == 2 * 2 * 2
    assert _values(reply.pooled) == [[3, 4], [0, 2]]


def test_an_answer_beyond_float16_is_an_error_and_no_infinity(tmp_path: Path) -> None:
    output = pb.OutputOptions(dtype=pb.DATA_TYPE_FLOAT16, normalize=False)
    with pytest.raises(InvalidInput, match="beyond FLOAT16's range; ask for FLOAT32") as refusal:
        _reply(tmp_path, output, scale=30_000)
    assert refusal.value.field == "output.dtype"
    assert _values(_reply(tmp_path, pb.OutputOptions(normalize=False), scale=30_000).pooled)[0] == [90_000, 120_000]


def test_a_model_is_described_by_its_manifest_its_limits_and_where_it_runs(tmp_path: Path) -> None:
    settings = Settings(
        bundle=tmp_path, max_request_sequences=5, max_request_tokens=6, max_request_bytes=7, max_attend_bytes=8
    )
    described = model(tmp_path, max_text_tokens=3, layers=2, heads=1, normalized=True)

    reply = model_reply(described, settings, CALIBRATION)

    assert (reply.model.name, reply.vocabulary_size, reply.feature_width) == ("tiny", 10, 0)
    assert (reply.takes_tokens, reply.takes_features, reply.takes_texts) == (True, False, True)
    assert (reply.min_tokens, reply.max_tokens, reply.max_text_tokens, reply.width) == (1, 4, 3, 2)
    assert (reply.layers, reply.heads, reply.pooling, reply.normalized) == (2, 1, pb.POOLING_MEAN, True)
    assert reply.limits == pb.RequestLimits(max_sequences=5, max_tokens=6, max_message_bytes=7, max_attend_bytes=8)
    assert not reply.attends
    assert reply.execution == pb.Execution(
        provider="cpu",
        requested_provider="auto",
        fallback_reason="no card",
        precision=pb.PRECISION_FP32,
        graph="g.onnx",
        token_budget=4,
        cell_budget=100,
        self_check=pb.SelfCheck(
            sequences=32,
            pooled_max_abs=0.5,
            hidden_max_abs=0.125,
            pooled_max_relative=0.25,
            hidden_max_relative=0.0625,
            min_cosine=0.75,
            mean_cosine=0.875,
        ),
        cost=pb.BatchCost(
            launch_s=1.0,
            token_s=0.5,
            padded_row_s=0.25,
            cell_s=0.125,
            error_ratio=0.0625,
            service_tokens_per_s=0.75,
        ),
    )
    assert [(graph.graph, graph.pooled_max_abs) for graph in reply.parity] == [("g.onnx", 0.25)]
