"""Each kind of bad request is answered with its own error, and disturbs no other request."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from random import Random
from typing import Any, cast

import grpc
import numpy as np
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from headwaiter_client import Client, HeadwaiterError, SequenceTooLong
from headwaiter_client.transport.status import error_from_rpc
from headwaiter_proto import encoder_pb2 as pb
from testbed.server_process import RunningServer
from tests.support.checkpoints import VOCABULARY
from tests.support.e2e.bad_requests import NOT_A_MESSAGE, TO_FEATURE_MODEL, TO_TEXT_MODEL, BadRequest

TIMEOUT_S = 10.0
GOOD_STREAMS = 4


class Caller:
    """Sends requests with the client, or serialized messages with gRPC, to one server."""

    def __init__(self, address: str) -> None:
        self.client = Client(address, timeout_s=TIMEOUT_S)
        self._channel = grpc.insecure_channel(address)

    def send(self, bad: BadRequest) -> None:
        if callable(bad.request):
            bad.request(self.client)
            return
        raw = bad.request if isinstance(bad.request, bytes) else bad.request.SerializeToString()
        call: Callable[..., bytes] = self._channel.unary_unary(f"/headwaiter.v1.Encoder/{bad.method}")
        try:
            call(raw, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            raise error_from_rpc(error, timeout_s=TIMEOUT_S, request_id=None) from error

    def close(self) -> None:
        self.client.close()
        self._channel.close()


@pytest.fixture(scope="module")
def text_model(text_server: RunningServer) -> Iterator[Caller]:
    caller = Caller(text_server.address)
    yield caller
    caller.close()


@pytest.fixture(scope="module")
def feature_model(feature_server: RunningServer) -> Iterator[Caller]:
    caller = Caller(feature_server.address)
    yield caller
    caller.close()


@pytest.mark.parametrize("bad", TO_TEXT_MODEL, ids=lambda bad: bad.name)
def test_a_text_model_refuses(text_model: Caller, bad: BadRequest) -> None:
    assert_refused(text_model, bad)


@pytest.mark.parametrize("bad", TO_FEATURE_MODEL, ids=lambda bad: bad.name)
def test_a_feature_model_refuses(feature_model: Caller, bad: BadRequest) -> None:
    assert_refused(feature_model, bad)


@pytest.mark.parametrize(
    ("method", "sequences", "field"),
    [("encode", ["rain", "rain " * 70], "texts"), ("encode_tokens", [[1], [1] * 65], "tokens.lengths")],
    ids=["texts", "tokens"],
)
def test_a_failure_of_a_partial_call_has_the_facts_of_the_error_of_a_whole_call(
    text_model: Caller, method: str, sequences: list[Any], field: str
) -> None:
    encode = getattr(text_model.client, method)
    with pytest.raises(SequenceTooLong) as refused:
        encode(sequences, request_id="r-1")
    (failure,) = encode(sequences, request_id="r-1", partial=True).failures.values()
    assert (type(failure), str(failure), vars(failure)) == (SequenceTooLong, str(refused.value), vars(refused.value))
    assert (failure.sequence, failure.field) == (1, field)
    assert failure.actual > failure.limit > 0


@pytest.mark.parametrize(
    "method",
    [
        "grpc.health.v1.Health/Check",
        "grpc.health.v1.Health/Watch",
        "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    ],
)
def test_health_checks_and_reflection_refuse_bytes_that_are_not_a_message(
    text_server: RunningServer, method: str
) -> None:
    with grpc.insecure_channel(text_server.address) as channel:
        call: Any = channel.stream_stream(f"/{method}")
        with pytest.raises(grpc.RpcError) as refused:
            list(call(iter([NOT_A_MESSAGE]), timeout=TIMEOUT_S))
    assert cast("grpc.Call", refused.value).code() is grpc.StatusCode.INVALID_ARGUMENT


def test_good_requests_are_answered_correctly_while_bad_ones_arrive(text_model: Caller) -> None:
    random = np.random.default_rng(0)
    known = [random.integers(0, len(VOCABULARY), length) for length in range(1, 25)]
    answers = np.concatenate([text_model.client.encode_tokens([ids]).pooled for ids in known])
    over = threading.Event()

    def send_good(seed: int) -> int:
        draw, answered = Random(seed), 0
        while not over.is_set():
            picks = draw.choices(range(len(known)), k=3)
            pooled = text_model.client.encode_tokens([known[pick] for pick in picks]).pooled
            np.testing.assert_allclose(pooled, answers[picks], rtol=0, atol=1e-5)
            answered += 1
        return answered

    with ThreadPoolExecutor(GOOD_STREAMS) as threads:
        streams = [threads.submit(send_good, seed) for seed in range(GOOD_STREAMS)]
        for bad in Random(0).sample(TO_TEXT_MODEL * 3, len(TO_TEXT_MODEL) * 3):
            with suppress(HeadwaiterError):
                text_model.send(bad)
        over.set()
        assert all(stream.result() > 0 for stream in streams)
    assert text_model.client.is_serving()


def assert_refused(caller: Caller, bad: BadRequest) -> None:
    with pytest.raises(HeadwaiterError) as refused:
        caller.send(bad)
    bad.check(refused.value)
    if bad.sentence is not None:
        assert str(refused.value) == bad.sentence
    if bad.refused_by_client:
        assert refused.value.__cause__ is None
        return
    call = cast("grpc.Call", refused.value.__cause__)
    assert call.code() is bad.code
    assert _reasons(call) == [pb.ErrorReason.Name(bad.error.reason)]


def _reasons(call: grpc.Call) -> list[str]:
    status = rpc_status.from_call(call)
    details = status.details if status else ()
    infos = [each for each in details if each.Is(error_details_pb2.ErrorInfo.DESCRIPTOR)]
    return [error_details_pb2.ErrorInfo.FromString(each.value).reason for each in infos]
