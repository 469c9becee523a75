"""A client and its process: after a fork, parent and child have connections of their own."""

import os
import subprocess
import sys
from typing import cast

import pytest

from headwaiter_client import Cancelled, Client
from headwaiter_client.transport.grpc_transports import GrpcTransport
from tests.support.client.fake_server import FakeServer
from tests.support.client.replica_process import free_ports, running_replicas

pytestmark = pytest.mark.usefixtures("starts_processes")


def test_parent_and_child_can_both_use_a_client_after_a_fork() -> None:
    # The test runs in a new process because pytest has threads, which a fork does not copy.
    program = (
        "import os, sys; from headwaiter_client import Client; client = Client(sys.argv[1], timeout_s=20); "
        "client.encode_tokens([[1]]); child = os.fork(); lengths = client.encode_tokens([[1, 2]]).lengths.tolist(); "
        "child or os._exit(lengths != [2]); print(lengths, os.waitpid(child, 0)[1])"
    )
    with running_replicas(free_ports(1)) as (replica,):
        command = [sys.executable, "-c", program, f"localhost:{replica.port}"]
        assert subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout == "[2] 0\n"


@pytest.mark.parametrize("in_a_list", [False, True], ids=["server", "replicas"])
def test_a_client_opens_new_connections_in_another_process(
    monkeypatch: pytest.MonkeyPatch, server: FakeServer, in_a_list: bool
) -> None:
    client = Client([server.address] if in_a_list else server.address)
    parent_id, transport = os.getpid(), cast("GrpcTransport", client._transport)
    parents = transport._channels
    client.encode_tokens([[1]])
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert client.encode_tokens([[1, 2]]).lengths.tolist() == [2]
    childs = transport._channels
    assert childs is not parents
    transport._reopen(None)  # By a second thread of the child that makes its first call at the same time.
    assert transport._channels is childs
    client.close()
    monkeypatch.setattr(os, "getpid", lambda: parent_id)
    with pytest.raises(Cancelled):
        client.encode_tokens([[1]])
    for (channel,) in parents:
        channel.close()
