"""Real servers are killed or drained, and started again, under load; the client loses no call."""

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from headwaiter_client import Client
from testbed.server_process import running_server

FLAGS = ["--provider", "cpu", "--threads", "1"]
CALLERS = 8


@pytest.mark.exhaustive
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM])
def test_no_call_fails_while_a_server_is_replaced(
    text_bundle: Path, replicas: int, signal_number: signal.Signals
) -> None:
    with ExitStack() as stack:
        servers = [stack.enter_context(running_server(text_bundle, FLAGS)) for _ in range(replicas)]
        addresses = [server.address for server in servers]
        client = stack.enter_context(Client(addresses if replicas > 1 else addresses[0]))
        ended = threading.Event()

        def call() -> int:
            calls = 0
            while not ended.is_set():
                assert client.encode(["a"]).lengths.tolist()
                calls += 1
            return calls

        with ThreadPoolExecutor(CALLERS) as threads:
            calls = [threads.submit(call) for _ in range(CALLERS)]
            time.sleep(0.5)
            servers[0].process.send_signal(signal_number)
            servers[0].process.wait()
            stack.enter_context(running_server(text_bundle, FLAGS, address=addresses[0]))
            time.sleep(0.5)
            ended.set()
            assert all(call.result() > 0 for call in calls)
