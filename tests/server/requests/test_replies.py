"""Replies hold the requested outputs in the requested form."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import Failures, InferenceFailed, InvalidInput
from headwaiter_proto.rules.outputs import read_output
from headwaiter_proto.rules.pooling import POOLINGS_OF_GRAPHS
from headwaiter_proto.rules.sequences import ParsedInput
from headwaiter_server.engine.description import description
from headwaiter_server.requests.replies import (
    attend_answer_bytes,
    attend_reply,
    encode_reply,
    model_ref,
    model_reply,
)
from headwaiter_server.runtime.attention_weights import AttentionSelection, AttentionWeights
from headwaiter_server.scheduling.job import Outcome
from headwaiter_server.settings.flags import Settings
from tests.support.server.stand_ins import model, served

POOLED = [np.array([3, 4], np.float32), np.array([0, 2], np.float32)]
HIDDEN: list[NDArray[np.generic]] = [np.array([[1, 2]], np.float32), np.array([[3, 4], [5, 6]], np.float32)]


def _inputs(*lengths: int, **fields: Any) -> ParsedInput:
    return ParsedInput([np.zeros(length, np.int64) for length in lengths], Failures(keep=True), **fields)


def _reply(folder: Path, output: pb.OutputOptions, *, normalized: bool = True, scale: float = 1) -> pb.EncodeResponse:
    described = model(folder, normalized=normalized)
    outputs = read_output(output, described.bundle.manifest)
    pooled = [vector * np.float32(scale) for vector in POOLED]
    outcome = Outcome(pooled, HIDDEN if outputs.needs_rows(0) else None)
    return encode_reply("r-1", _inputs(1, 2), outputs, outcome, served(described))


def _values(tensor: pb.Tensor) -> list[list[float]]:
    stored = {pb.DATA_TYPE_FLOAT32: "<f4", pb.DATA_TYPE_FLOAT16: "<f2", pb.DATA_TYPE_INT8: "i1"}[tensor.dtype]
    rows: list[list[float]] = np.frombuffer(tensor.data, stored).reshape(tuple(tensor.shape)).tolist()
    return rows


@pytest.mark.parametrize("query", [None, 2])
def test_the_size_of_attention_weights_counts_all_queries_also_if_one_has_context_vectors(query: int | None) -> None:
    selection = AttentionSelection([1], [0, 2], query)
    weights = np.zeros((1, 2, 5, 5), np.float32)
    assert attend_answer_bytes(selection, 5) == weights.nbytes


def test_a_reply_has_the_request_id_the_model_and_the_lengths(tmp_path: Path) -> None:
    reply = _reply(tmp_path, pb.OutputOptions())
    assert reply.request_id == "r-1"
    assert reply.model == pb.ModelRef(
        name="tiny", digest="ab" * 32, precision=pb.PRECISION_FP32, version="1", results_digest="cd" * 32
    )
    assert list(reply.lengths) == [1, 2]


def test_hidden_rows_are_never_scaled(tmp_path: Path) -> None:
    reply = _reply(tmp_path, pb.OutputOptions(hidden=True, normalize=True))
    assert _values(reply.hidden) == [[1, 2], [3, 4], [5, 6]]


def test_a_value_that_float16_cannot_hold_is_an_error(tmp_path: Path) -> None:
    output = pb.OutputOptions(dtype=pb.DATA_TYPE_FLOAT16, normalize=False)
    with pytest.raises(InvalidInput, match="120000") as refusal:
        _reply(tmp_path, output, scale=30_000)
    assert refusal.value.field == "output.dtype"
    assert _values(_reply(tmp_path, pb.OutputOptions(normalize=False), scale=30_000).pooled)[0] == [90_000, 120_000]


def test_pooling_leaves_out_the_rows_of_a_prompt(tmp_path: Path) -> None:
    described = model(tmp_path)
    output = read_output(pb.OutputOptions(), described.bundle.manifest)
    assert (output.needs_rows(1), output.needs_rows(0)) == (True, False)
    outcome = Outcome(POOLED, HIDDEN)
    reply = encode_reply("r-1", _inputs(1, 2, skipped_tokens=1), output, outcome, served(described))
    # No row of the first sequence is left.
    assert _values(reply.pooled) == [[0, 0], [5, 6]]


def test_int8_values_times_the_scale_of_their_row_are_the_answer(tmp_path: Path) -> None:
    output = pb.OutputOptions(dtype=pb.DATA_TYPE_INT8, normalize=False, pooled=True, hidden=True)
    reply = _reply(tmp_path, output)
    assert (_values(reply.pooled), _values(reply.hidden)) == (
        [[95, 127], [0, 127]],
        [[64, 127], [95, 127], [106, 127]],
    )
    assert list(reply.pooled.row_scales) == pytest.approx([4 / 127, 2 / 127])
    assert list(reply.hidden.row_scales) == pytest.approx([2 / 127, 4 / 127, 6 / 127])


def test_hidden_rows_may_have_another_type_than_pooled_vectors(tmp_path: Path) -> None:
    output = pb.OutputOptions(pooled=True, hidden=True, hidden_dtype=pb.DATA_TYPE_FLOAT16)
    reply = _reply(tmp_path, output)
    assert (reply.pooled.dtype, reply.hidden.dtype) == (pb.DATA_TYPE_FLOAT32, pb.DATA_TYPE_FLOAT16)
    assert list(reply.hidden.row_scales) == []


@pytest.mark.parametrize(
    ("failed", "outcome", "lengths", "pooled"),
    [
        ([1], (POOLED, HIDDEN), [1, 0, 2], [[3, 4], [0, 0], [0, 2]]),
        ([0, 1, 2], (None, []), [0, 0, 0], [[0, 0], [0, 0], [0, 0]]),
    ],
)
def test_a_failed_sequence_has_a_vector_of_zeros_no_rows_and_an_error(
    failed: list[int], outcome: tuple[Any, Any], lengths: list[int], pooled: list[list[float]], tmp_path: Path
) -> None:
    described = model(tmp_path)
    output = read_output(pb.OutputOptions(pooled=True, hidden=True, normalize=True), described.bundle.manifest)
    errors = {index: InferenceFailed("failed", sequence=index) for index in failed}
    inputs = _inputs(1, 2, 2, offsets=[np.zeros((length, 2), np.int64) for length in (1, 2, 2)])
    reply = encode_reply("r-1", inputs, output, Outcome(*outcome, failures=errors), served(described))

    assert list(reply.lengths) == lengths
    units = [np.array(vector) / max(1, np.linalg.norm(vector)) for vector in pooled]
    np.testing.assert_allclose(_values(reply.pooled), units, rtol=1e-6)
    assert list(reply.hidden.shape) == [sum(lengths), 2]
    assert [len(offsets.begin) for offsets in reply.offsets] == lengths
    assert list(reply.failures) == [
        pb.Failure(
            sequence=index,
            reason=pb.INFERENCE_FAILED,
            message=f"sequence {index} failed",
            metadata={"sequence": str(index)},
        )
        for index in failed
    ]


def test_a_model_is_described_by_its_manifest_its_limits_and_its_execution(tmp_path: Path) -> None:
    settings = Settings(
        bundle=tmp_path, max_request_sequences=5, max_request_tokens=6, max_request_bytes=95, max_attend_bytes=8
    )
    prompts = [pb.Prompt(name="query", text="query: ", tokens=3)]
    described = model(
        tmp_path, max_text_tokens=3, layers=2, heads=1, normalized=True, prompts=prompts, default_prompt="query"
    )

    running = served(described)
    reply = model_reply(running.facts, settings.request_limits, description(running, settings.provider))

    assert (reply.model.name, reply.vocabulary_size, reply.feature_width) == ("tiny", 10, 0)
    assert (reply.takes_tokens, reply.takes_features, reply.takes_texts) == (True, False, True)
    assert (reply.min_tokens, reply.max_tokens, reply.max_text_tokens, reply.width) == (1, 4, 3, 2)
    assert (reply.layers, reply.heads, reply.pooling, reply.normalized) == (2, 1, pb.POOLING_MEAN, True)
    assert reply.limits == pb.RequestLimits(
        max_sequences=5, max_tokens=6, max_message_bytes=95, max_attend_bytes=8, max_text_bytes=95
    )
    assert not reply.attends
    assert (list(reply.prompts), reply.default_prompt) == (prompts, "query")
    not_from_rows = {pb.POOLING_UNSPECIFIED, pb.POOLING_NONE, *POOLINGS_OF_GRAPHS}
    assert set(reply.poolings) == set(pb.Pooling.values()) - not_from_rows
    assert reply.execution == pb.Execution(
        provider="cpu",
        requested_provider="auto",
        fallback_reason="no GPU",
        precision=pb.PRECISION_FP32,
        graph="g.onnx",
        token_budget=4,
        cell_budget=100,
        longest_sequence_bytes=4096,
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
            hidden_row_s=0.0625,
        ),
    )
    assert [(graph.graph, graph.pooled_max_abs) for graph in reply.parity] == [("g.onnx", 0.25)]


def test_attention_weights_are_float32_whatever_the_precision_of_the_model(tmp_path: Path) -> None:
    int8 = replace(model(tmp_path), precision=pb.PRECISION_INT8)
    assert model_ref(served(int8).facts).precision == pb.PRECISION_INT8
    attention = AttentionWeights(np.ones((1, 1, 1, 1), np.float32), None)
    answered_by = attend_reply("r", attention, [], served(int8)).model
    # The digest of results is that of int8.
    assert (answered_by.precision, answered_by.results_digest) == (pb.PRECISION_FP32, "")
