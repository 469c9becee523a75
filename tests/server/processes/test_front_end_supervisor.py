"""The processes of the front ends: which ports they keep, and in which order a front end starts."""

import asyncio
import re
import socket
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headwaiter_server.front_end import CannotListen
from headwaiter_server.metrics.recorder import Recorder
from headwaiter_server.processes import front_end_supervisor
from headwaiter_server.processes.front_end_links import FrontEndLinks
from headwaiter_server.processes.front_end_supervisor import FrontEndSupervisor
from headwaiter_server.processes.link import Link
from headwaiter_server.settings.flags import Settings


class Child:
    """Stands in for the process of a front end: notes what the engine asks."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        names = ("open", "prepare", "publish", "listen", "stop")
        self._link = Link("the engine", {name: self._method(name) for name in names})

    async def spawn(self, engine: socket.socket, _: socket.socket, number: int) -> "Child":
        await self._link.open(engine.dup())
        return self

    async def wait(self) -> int:
        await asyncio.wait({self._link.closed})
        return 0

    def kill(self) -> None: ...

    def _method(self, name: str) -> Any:
        async def method(*_: Any) -> Any:
            self.asked.append(name)
            return (1, 2) if name == "listen" else None

        return method


@pytest.mark.parametrize(
    ("running", "starting"),
    [
        ("[::1]", "localhost"),
        ("127.0.0.1", "localhost"),
        ("localhost", "[::1]"),
        ("[::1]", "0.0.0.0"),
        ("0.0.0.0", "[::1]"),
        ("[::]", "127.0.0.1"),
    ],
)
def test_two_servers_share_no_address_of_a_host(running: str, starting: str) -> None:
    with ExitStack() as stack:
        sockets, address = front_end_supervisor._reserve(f"{running}:0")
        for each in sockets:
            stack.enter_context(each)
        port = address.rpartition(":")[2]
        with pytest.raises(CannotListen, match=re.escape(f"{starting}:{port}")):
            front_end_supervisor._reserve(f"{starting}:{port}")


async def test_a_front_end_knows_the_models_before_it_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = Child()
    monkeypatch.setattr(front_end_supervisor, "spawn_process", child.spawn)
    links = FrontEndLinks(Recorder())
    directory = SimpleNamespace(known_versions=[], current=[], started=True)
    engine: Any = SimpleNamespace(max_unread_bytes=1 << 20, load=None, unload=None, directory=directory)
    links.engine = engine
    facts: Any = SimpleNamespace(name="rain", version="1", number=3)
    await links.prepare(facts, None)
    processes = FrontEndSupervisor(Settings(bundle=tmp_path, address="127.0.0.1:0", metrics_port=0), 1, links)
    async with asyncio.timeout(10):
        await processes.listen()
        await processes.stop_listening(0)
    assert child.asked == ["open", "prepare", "publish", "listen", "stop"]
