"""Attend returns attention weights, and with a text its tokens."""

import numpy as np
import pytest

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_server.metrics.model_recorder import STAGES
from tests.support.server.service_under_test import Service, token_request
from tests.support.server.stand_ins import sample


async def test_the_reply_to_a_text_has_its_tokens_and_the_context_of_the_query(service: Service) -> None:
    texts = pb.Texts(values=["a bcd"])
    reply = await service.attend(pb.AttendRequest(texts=texts, layers=[1, 0], heads=[2], query=1, request_id="r-1"))
    assert (reply.request_id, reply.model.name, list(reply.tokens)) == ("r-1", "tiny", ["<1>", "<3>"])
    assert (list(reply.weights.shape), list(reply.context.shape)) == ([2, 1, 2, 2], [2, 1, 1])
    assert np.frombuffer(reply.weights.data, "<f4").tolist() == [1] * 4 + [0] * 4
    assert np.frombuffer(reply.context.data, "<f4").tolist() == [2, 2]


async def test_the_reply_to_ids_has_no_tokens_and_its_stages_add_up(service: Service) -> None:
    reply = await service.attend(pb.AttendRequest(tokens=token_request([1, 2, 3]).tokens))
    assert (list(reply.weights.shape), list(reply.tokens), reply.HasField("context")) == ([2, 3, 3, 3], [], False)
    stages_s = [getattr(reply.timings, f"{stage}_s") for stage in STAGES]
    assert sum(stages_s) == pytest.approx(reply.timings.total_s)
    assert min(stages_s) >= 0
    assert reply.timings.batches == 1
    for stage, seconds in zip(STAGES, stages_s, strict=True):
        labels = {"model": "tiny", "version": "1", "stage": stage}
        assert sample(service.recorder, "attend_stage_duration_seconds_sum", **labels) == pytest.approx(seconds)
        assert not sample(service.recorder, "stage_duration_seconds_count", **labels)
