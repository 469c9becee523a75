"""Attend returns attention weights, and refuses bad requests before it computes anything."""

import numpy as np
import pytest

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import HeadwaiterError, InvalidInput, ModelNotFound
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


@pytest.mark.parametrize(
    ("request_", "error", "field", "value"),
    [
        (pb.AttendRequest(), InvalidInput, None, "no input"),
        (pb.AttendRequest(model="large"), ModelNotFound, "model", "'large'"),
        (pb.AttendRequest(request_id="\n"), InvalidInput, "request_id", r"'\n'"),
        (pb.AttendRequest(tokens=token_request([1], [2]).tokens), InvalidInput, "tokens.lengths", "2 sequences"),
        (pb.AttendRequest(tokens=token_request([10]).tokens), InvalidInput, "tokens.data", "id 10"),
        (pb.AttendRequest(texts=pb.Texts()), InvalidInput, None, "no sequences"),
        (pb.AttendRequest(texts=pb.Texts(values=["a"], prompt="query")), InvalidInput, "texts.prompt", "'query'"),
        (pb.AttendRequest(texts=pb.Texts(values=["a"]), layers=[2]), InvalidInput, "layers", "2"),
        (pb.AttendRequest(tokens=token_request([1, 2, 3, 4]).tokens), InvalidInput, "layers", "384 bytes"),
    ],
)
async def test_a_bad_request_is_refused(
    service: Service, request_: pb.AttendRequest, error: type[HeadwaiterError], field: str | None, value: str
) -> None:
    with pytest.raises(error) as refusal:
        await service.attend(request_)
    assert type(refusal.value) is error
    assert refusal.value.field == field
    assert value in str(refusal.value)
