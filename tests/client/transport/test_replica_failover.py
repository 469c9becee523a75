"""Three replicas under load: no call fails while one is killed, another drained, and both restarted."""

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from typing import Any, cast

import pytest

from headwaiter_client import AsyncClient, Cancelled, Client
from headwaiter_client.transport.grpc_transports import GrpcTransport
from tests.support.client.async_encode import Encode, async_encode
from tests.support.client.fake_server import FakeServer
from tests.support.client.replica_process import ReplicaProcess, free_ports, running_replicas
from tests.support.tiers import exhaustive

pytestmark = pytest.mark.usefixtures("starts_processes")

TASKS = 8


@pytest.mark.parametrize(
    "client_class",
    [pytest.param(Client, id="sync"), *exhaustive(pytest.param(AsyncClient, id="async"))],
)
async def test_no_call_fails_while_replicas_die_drain_and_come_back(
    client_class: type[Client] | type[AsyncClient],
) -> None:
    with running_replicas(free_ports(3)) as replicas:
        killed, drained, steady = replicas
        addresses = [f"localhost:{replica.port}" for replica in replicas]
        async with async_encode(client_class, addresses) as encode, _Load(encode) as load:
            await load.answered_by(*replicas)
            await asyncio.to_thread(killed.stop, signal.SIGKILL)
            await load.answered_by(drained, steady)
            await asyncio.to_thread(drained.stop, signal.SIGTERM)
            await load.answered_by(steady)
            for replica in (killed, drained):
                replica.start()
            await load.answered_by(*replicas)


class _Load:
    """Tasks that make calls during an `async with` block, and check each answer."""

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self._answers: Counter[str] = Counter()
        self._ended = False

    async def __aenter__(self) -> "_Load":
        self._group = asyncio.TaskGroup()
        await self._group.__aenter__()
        for tokens in range(1, TASKS + 1):
            self._group.create_task(self._call(tokens))
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._ended = True
        await self._group.__aexit__(*error)

    async def answered_by(self, *replicas: ReplicaProcess, calls: int = 50) -> None:
        """Wait until each of the replicas has answered this number of further calls."""
        until = {str(replica.port): self._answers[str(replica.port)] + calls for replica in replicas}
        while any(self._answers[port] < count for port, count in until.items()):
            await self._encode([[1]])

    async def _call(self, tokens: int) -> None:
        while not self._ended:
            encoding = await self._encode([[1] * tokens])
            assert encoding.lengths.tolist() == [tokens]
            self._answers[encoding.model.name] += 1


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
