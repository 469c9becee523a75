"""The methods of both services, from message bytes to message bytes."""

import logging
from pathlib import Path

import numpy as np
import pytest

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto import open_inference_pb2 as oip
from headwaiter_proto.rules.errors import InvalidInput, Starting
from headwaiter_server.engine.local import LocalEngine
from headwaiter_server.metrics.model_recorder import STAGES
from headwaiter_server.metrics.recorder import Recorder
from headwaiter_server.open_inference.methods import OpenInferenceMethods
from headwaiter_server.requests.request_path import RequestPath
from headwaiter_server.rpc.open_inference.service import OpenInferenceService
from headwaiter_server.rpc.open_streams import OpenStreams
from headwaiter_server.rpc.service import EncoderService
from headwaiter_server.settings.flags import Settings
from tests.support.server.service_under_test import Service, calls_of, endless_call, pooled_rows, token_request
from tests.support.server.stand_ins import sample


async def test_a_server_is_unavailable_until_its_model_is_ready(tmp_path: Path) -> None:
    settings, recorder = Settings(bundle=tmp_path), Recorder()
    path = RequestPath(settings, recorder, LocalEngine(settings, recorder))
    starting = EncoderService(path, calls_of(path), OpenStreams(path))
    for method in ("Encode", "Classify", "Tokenize", "Attend", "GetModel", "ListModels", "ListBatches"):
        with pytest.raises(Starting):
            await starting.answer(method, b"", endless_call())
    inference, call = OpenInferenceMethods(path), endless_call()
    assert (await inference.server_live(oip.ServerLiveRequest(), call)).live
    assert not (await inference.server_ready(oip.ServerReadyRequest(), call)).ready
    assert not (await inference.model_ready(oip.ModelReadyRequest(), call)).ready
    for refused in (
        inference.model_metadata(oip.ModelMetadataRequest(), call),
        inference.repository_index(oip.RepositoryIndexRequest(), call),
        OpenInferenceService(path, calls_of(path), OpenStreams(path)).model_infer(b"", call),
    ):
        with pytest.raises(Starting):
            await refused


async def test_every_method_refuses_bytes_that_are_not_a_message(service: Service) -> None:
    for method in ("Encode", "Classify", "Tokenize", "Attend", "GetModel", "ListModels", "ListBatches", "LoadModel"):
        with pytest.raises(InvalidInput, match=r"headwaiter\.v1\."):
            await service.rpc.answer(method, b"\xff", endless_call())


async def test_a_request_without_an_id_gets_a_unique_one(service: Service) -> None:
    first, second = await service.encode(token_request([1])), await service.encode(token_request([1]))
    assert "" != first.request_id != second.request_id


async def test_a_large_reply_is_written_in_a_thread_and_is_the_same(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwaiter_server.requests.request_path._LARGE_REPLY_TOKENS", 3)
    reply = await service.encode(token_request([3, 4], [5, 6], output=pb.OutputOptions(hidden=True)))
    rows = np.frombuffer(reply.hidden.data, "<f4").reshape(tuple(reply.hidden.shape))
    assert rows.tolist() == [[3, 1], [4, 1], [5, 1], [6, 1]]


async def test_a_partial_request_is_answered_except_for_its_bad_sequence(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headwaiter_server")
    reply = await service.encode(token_request([1, 2], [3, 10], [4], partial=True, request_id="r-1"))
    assert (pooled_rows(reply), list(reply.lengths)) == ([[3, 2], [0, 0], [4, 1]], [2, 0, 1])
    (failure,) = reply.failures
    assert (failure.sequence, failure.reason) == (1, pb.INVALID_INPUT)
    assert "sequence 1" in failure.message
    assert failure.metadata == {"sequence": "1", "field": "tokens.data", "limit": "9", "actual": "10"}
    (line,) = (record.getMessage() for record in caplog.records)
    assert line.startswith("Encode r-1, model tiny version 1: ")
    assert "InvalidInput: 1 sequences" in line
    assert failure.message in line


async def test_a_partial_request_with_only_bad_sequences_is_answered_without_a_batch(service: Service) -> None:
    reply = await service.encode(
        token_request([10], [11], partial=True, output=pb.OutputOptions(pooled=True, hidden=True))
    )
    assert (pooled_rows(reply), list(reply.lengths), list(reply.hidden.shape)) == ([[0, 0], [0, 0]], [0, 0], [0, 2])
    assert [failure.sequence for failure in reply.failures] == [0, 1]
    stages_s = [getattr(reply.timings, f"{stage}_s") for stage in STAGES]
    assert (sum(stages_s), reply.timings.batches) == (pytest.approx(reply.timings.total_s), 0)
    assert min(stages_s) >= 0


async def test_a_partial_request_with_too_many_sequences_is_refused(service: Service) -> None:
    with pytest.raises(InvalidInput) as refusal:
        await service.encode(token_request([1], [1], [1], [1], partial=True))
    assert (refusal.value.limit, refusal.value.actual) == (3, 4)


async def test_attention_weights_of_a_text_come_with_its_tokens_and_the_context_of_the_query(service: Service) -> None:
    texts = pb.Texts(values=["a bcd"])
    reply = await service.attend(pb.AttendRequest(texts=texts, layers=[1, 0], heads=[2], query=1, request_id="r-1"))
    assert (reply.request_id, reply.model.name, list(reply.tokens)) == ("r-1", "tiny", ["<1>", "<3>"])
    assert (list(reply.weights.shape), list(reply.context.shape)) == ([2, 1, 2, 2], [2, 1, 1])
    assert np.frombuffer(reply.weights.data, "<f4").tolist() == [1] * 4 + [0] * 4
    assert np.frombuffer(reply.context.data, "<f4").tolist() == [2, 2]


async def test_attention_weights_of_ids_come_without_tokens_and_their_stages_count_apart(service: Service) -> None:
    reply = await service.attend(pb.AttendRequest(tokens=token_request([1, 2, 3]).tokens))
    assert (list(reply.weights.shape), list(reply.tokens), reply.HasField("context")) == ([2, 3, 3, 3], [], False)
    stages_s = [getattr(reply.timings, f"{stage}_s") for stage in STAGES]
    assert (sum(stages_s), reply.timings.batches) == (pytest.approx(reply.timings.total_s), 1)
    assert min(stages_s) >= 0
    for stage, seconds in zip(STAGES, stages_s, strict=True):
        labels = {"model": "tiny", "version": "1", "stage": stage}
        assert sample(service.recorder, "attend_stage_duration_seconds_sum", **labels) == pytest.approx(seconds)
        assert not sample(service.recorder, "stage_duration_seconds_count", **labels)


async def test_attention_weights_of_too_many_bytes_are_refused(service: Service) -> None:
    with pytest.raises(InvalidInput) as refusal:
        await service.attend(pb.AttendRequest(tokens=token_request([1, 2, 3, 4]).tokens))
    assert (refusal.value.field, refusal.value.limit, refusal.value.actual) == ("layers", 383, 384)
