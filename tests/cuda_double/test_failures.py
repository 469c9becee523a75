"""A GPU that hangs, fails or has too little memory while it serves, on ONNX Runtime's CUDA provider."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from headwaiter_client import Client, RetryPolicy, Unavailable
from tests.support.cuda_double import build
from tests.support.cuda_double.environment import double_in
from tests.support.cuda_double.impatient_server import TOKEN_BUDGET
from tests.support.cuda_double.log import Allocation, Failure, of
from tests.support.cuda_double.servers import ServerOnDouble, serving
from tests.support.e2e.grpc_errors import code_of, is_from_server
from tests.support.e2e.prometheus_metrics import metric_value

if reason := build.why_unavailable():
    pytest.skip(reason, allow_module_level=True)

TIMEOUT_S = 30.0
_MIB = 1 << 20


@pytest.fixture
def running(text_bundle: Path, tmp_path: Path) -> Iterator[ServerOnDouble]:
    """A server on the double that gives up devices within seconds."""
    with serving("impatient_server", text_bundle, tmp_path, double_in(tmp_path), "--warm-up", "off") as server:
        yield server


@pytest.fixture
def client(running: ServerOnDouble) -> Iterator[Client]:
    """A client that does not retry."""
    with Client(running.server.address, retry=RetryPolicy(max_attempts=1), timeout_s=TIMEOUT_S) as connected:
        yield connected


def test_a_gpu_that_hangs_fails_its_callers_and_the_server_exits_with_3(
    running: ServerOnDouble, client: Client
) -> None:
    with ThreadPoolExecutor(1) as thread:
        running.double.controls.hang()
        call = thread.submit(client.encode_tokens, [[1] * 5])
        running.double.controls.wait_until_hanging()
        error = call.exception(TIMEOUT_S)
        assert isinstance(error, Unavailable)
        assert code_of(error) is grpc.StatusCode.UNAVAILABLE
        assert is_from_server(error)
        # The process ends although a thread still waits for the GPU.
        assert running.server.process.wait(TIMEOUT_S) == 3
        assert running.double.controls.waiting_threads() == 1


def test_after_an_illegal_access_the_server_exits_with_3(running: ServerOnDouble, client: Client) -> None:
    running.double.controls.fail_at_launch(3)
    with pytest.raises(Unavailable) as failed:
        client.encode_tokens([[1] * 5])
    assert code_of(failed.value) is grpc.StatusCode.UNAVAILABLE
    assert running.server.process.wait(TIMEOUT_S) == 3
    assert [failure.error for failure in of(Failure, running.double.log.events())] == [700]
    assert "an illegal memory access was encountered" in running.log.read_text()


def test_every_sequence_of_a_batch_too_large_for_the_memory_is_answered_and_the_limits_are_lowered(
    running: ServerOnDouble, client: Client
) -> None:
    url = running.server.metrics_url
    assert metric_value(url, "headwaiter_token_budget") == TOKEN_BUDGET
    running.double.controls.limit_allocations(_MIB)
    lengths = [64] * (TOKEN_BUDGET // 64)
    encoding = client.encode_tokens([[1] * length for length in lengths])
    assert encoding.lengths.tolist() == lengths
    assert encoding.pooled.shape == (len(lengths), 32)
    assert metric_value(url, "headwaiter_batches_failed_total", reason="size") >= 1
    assert metric_value(url, "headwaiter_token_budget") <= TOKEN_BUDGET // 2
    assert any(allocation.error == 2 for allocation in of(Allocation, running.double.log.events()))
    running.double.controls.limit_allocations(0)
    assert client.encode_tokens([[1] * 5]).lengths.tolist() == [5]
    assert running.server.process.poll() is None
