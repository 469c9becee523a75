"""The options of calls that a client has as arguments."""

from typing import Any

import numpy as np
import pytest

from headwaiter_client import AsyncClient, AsyncFakeEncoder, Client, FakeEncoder
from headwaiter_proto import encoder_pb2 as pb
from tests.support.client.client_runner import ClientRunner, RecordingEncoder


def sent(runner: ClientRunner, connect: dict[str, Any], method: str, *arguments: Any, **options: Any) -> Any:
    """Make a call with a client that was created with the arguments `connect`; return the request that was sent."""
    fake = FakeEncoder(labels=["relevance"])
    runner.call(fake, method, *arguments, connect=connect, **options)
    return fake.requests[-1]


@pytest.mark.parametrize(
    ("method", "sequences"), [("encode", ["a"]), ("encode_tokens", [[1]]), ("encode_features", [[[1.0] * 8]])]
)
def test_an_encode_call_has_the_options_of_the_client(method: str, sequences: list[Any], runner: ClientRunner) -> None:
    output = {"dtype": "float16", "pooling": "max", "normalize": False, "dimensions": 4}
    connect = {"model": "fake", "model_version": "3", "priority": "bulk", **output}
    request = sent(runner, connect, method, sequences)
    assert (request.model, request.model_version, request.priority) == ("fake", "3", pb.PRIORITY_BULK)
    assert request.output == pb.OutputOptions(
        dtype=pb.DATA_TYPE_FLOAT16, pooling=pb.POOLING_MAX, normalize=False, dimensions=4
    )


def test_a_stream_has_the_options_of_the_client() -> None:
    fake = FakeEncoder()
    with Client(transport=fake, dtype="float16") as client:
        (one,) = client.encode_stream(["a"])
        assert one.pooled.dtype == np.float16


@pytest.mark.parametrize(("method", "arguments"), [("classify", (["a"],)), ("rerank", ("a", ["b"]))])
def test_a_call_for_scores_has_those_options_of_the_client_that_it_knows(
    method: str, arguments: tuple[Any, ...], runner: ClientRunner
) -> None:
    connect = {"model": "fake", "priority": "bulk", "dtype": "int8", "dimensions": 4}
    request = sent(runner, connect, method, *arguments)
    assert (request.model, request.priority) == ("fake", pb.PRIORITY_BULK)


def test_a_call_overrides_the_options_of_the_client(runner: ClientRunner) -> None:
    request = sent(runner, {"priority": "bulk", "dtype": "int8"}, "encode", ["a"], priority="interactive")
    assert (request.priority, request.output.dtype) == (pb.PRIORITY_INTERACTIVE, pb.DATA_TYPE_INT8)


def test_the_version_of_the_clients_model_is_not_used_for_another_model(runner: ClientRunner) -> None:
    connect = {"model": "mine", "model_version": "3"}
    for method, sequence in (("encode", ["a"]), ("classify", ["a"]), ("attend", "a")):
        request = sent(runner, connect, method, sequence, model="fake")
        assert (request.model, request.model_version) == ("fake", "")


def test_an_empty_name_is_that_of_the_client(runner: ClientRunner) -> None:
    connect = {"model": "fake", "model_version": "3"}
    for method, sequence in (("encode", ["a"]), ("classify", ["a"]), ("attend", "a")):
        request = sent(runner, connect, method, sequence, model="", model_version="")
        assert (request.model, request.model_version) == ("fake", "3")
        assert sent(runner, connect, method, sequence, model_version="4").model_version == "4"


def test_attention_and_the_description_are_those_of_the_clients_model(runner: ClientRunner) -> None:
    fake = RecordingEncoder(model="mine")
    connect = {"model": "mine", "model_version": "3"}
    assert runner.call(fake, "model", connect=connect).model.name == "mine"
    request = sent(runner, {"model": "fake", "model_version": "3"}, "attend", "a")
    assert (request.model, request.model_version) == ("fake", "3")


@pytest.mark.parametrize(
    ("argument", "error"),
    [
        ({"timeout": 3}, TypeError),
        ({"truncation": "right"}, TypeError),
        ({"model": 3}, TypeError),
        ({"priority": "high"}, ValueError),
        ({"dtype": "float64"}, ValueError),
        ({"dimensions": 0}, ValueError),
    ],
)
def test_a_wrong_argument_is_named_when_the_client_is_made(argument: dict[str, Any], error: type[Exception]) -> None:
    (name,) = argument
    with pytest.raises(error, match=name):
        Client(transport=FakeEncoder(), **argument)
    with pytest.raises(error, match=name):
        AsyncClient(transport=AsyncFakeEncoder(FakeEncoder()), **argument)
