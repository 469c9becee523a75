"""A partial request gets the answers of its good sequences and the errors of the others."""

import logging

import pytest

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import InvalidInput
from headwaiter_server.metrics.model_recorder import STAGES
from tests.server.rpc.service_under_test import Service, pooled_rows, token_request


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
    assert line.startswith("Encode r-1: InvalidInput: 1 sequences")
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
