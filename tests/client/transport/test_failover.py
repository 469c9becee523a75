"""Three replicas under load, one killed, one drained: no call fails, and both have their turns again once restarted."""

import asyncio
import signal
import socket
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from headwaiter_client import AsyncClient, Client
from tests.client.either import Encode, encode_with
from tests.client.replica import Replica, running_replicas

TASKS = 8


@pytest.mark.parametrize("kind", [Client, AsyncClient], ids=["sync", "async"])
async def test_replicas_that_die_or_drain_fail_no_call_and_have_their_turns_again_when_they_are_back(
    kind: type[Client] | type[AsyncClient],
) -> None:
    with running_replicas(_free_ports(3)) as replicas:
        killed, drained, steady = replicas
        addresses = [f"localhost:{replica.port}" for replica in replicas]
        async with encode_with(kind, addresses) as encode, _Load(encode) as load:
            await load.answered_by(*replicas)
            await asyncio.to_thread(killed.stop, signal.SIGKILL)
            await load.answered_by(drained, steady)
            await asyncio.to_thread(drained.stop, signal.SIGTERM)
            await load.answered_by(steady)
            for replica in (killed, drained):
                replica.start()
            await load.answered_by(*replicas)


class _Load:
    """Tasks that make calls from the beginning of a block to its end, each of which must be answered right."""

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

    async def answered_by(self, *replicas: Replica, calls: int = 50) -> None:
        """Returns when each of the replicas has answered so many calls more."""
        until = {str(replica.port): self._answers[str(replica.port)] + calls for replica in replicas}
        while any(self._answers[port] < count for port, count in until.items()):
            await self._encode([[1]])

    async def _call(self, tokens: int) -> None:
        while not self._ended:
            encoding = await self._encode([[1] * tokens])
            assert encoding.lengths.tolist() == [tokens]
            self._answers[encoding.model.name] += 1


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in sockets]
    for listener in sockets:
        listener.close()
    return ports


def test_parent_and_child_may_both_go_on_with_a_client_after_a_fork() -> None:
    # In a process of its own: pytest has threads.
    program = (
        "import os, sys; from headwaiter_client import Client; client = Client(sys.argv[1], timeout_s=20); "
        "client.encode_tokens([[1]]); child = os.fork(); lengths = client.encode_tokens([[1, 2]]).lengths.tolist(); "
        "child or os._exit(lengths != [2]); print(lengths, os.waitpid(child, 0)[1])"
    )
    with running_replicas(_free_ports(1)) as (replica,):
        command = [sys.executable, "-c", program, f"localhost:{replica.port}"]
        assert subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout == "[2] 0\n"
