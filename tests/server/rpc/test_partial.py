"""A partial request: the good sequences are answered, and the others named."""

import logging

import pytest

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_server.errors import InvalidInput
from headwaiter_server.metrics import STAGES
from tests.server.rpc.opened import Service, pooled_rows, token_request


async def test_a_partial_request_gets_the_answers_of_the_sequences_that_are_good(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headwaiter_server")
    reply = await service.encode(token_request([1, 2], [3, 10], [4], partial=True, request_id="r-1"))
    assert (pooled_rows(reply), list(reply.lengths)) == ([[3, 2], [0, 0], [4, 1]], [2, 0, 1])
    (failure,) = reply.failures
    assert (failure.sequence, failure.reason) == (1, pb.INVALID_INPUT)
    assert failure.message == "tokens: sequence 1 has id 10 at position 1, and ids are 0 to 9"
    assert failure.metadata == {"sequence": "1", "field": "tokens.data", "limit": "9", "actual": "10"}
    assert [record.getMessage() for record in caplog.records] == [
        f"Encode r-1: InvalidInput: 1 sequences failed, the first: {failure.message}"
    ]


async def test_a_partial_request_whose_sequences_are_all_bad_is_answered_without_running_any(service: Service) -> None:
    reply = await service.encode(
        token_request([10], [11], partial=True, output=pb.OutputOptions(pooled=True, hidden=True))
    )
    assert (pooled_rows(reply), list(reply.lengths), list(reply.hidden.shape)) == ([[0, 0], [0, 0]], [0, 0], [0, 2])
    assert [failure.sequence for failure in reply.failures] == [0, 1]
    stages_s = [getattr(reply.timings, f"{stage}_s") for stage in STAGES]
    assert (sum(stages_s), reply.timings.batches) == (pytest.approx(reply.timings.total_s), 0)
    assert min(stages_s) >= 0


async def test_a_partial_request_that_is_wrong_as_a_whole_is_refused(service: Service) -> None:
    with pytest.raises(InvalidInput, match="4 sequences, and the server takes 3"):
        await service.encode(token_request([1], [1], [1], [1], partial=True))
