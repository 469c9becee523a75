"""The processes of the front ends: which ports they keep, and in which order a front end starts."""

import asyncio
import re
import socket
import time
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
    """Stands in for the process of a front end: notes what the engine asks, and may stop to answer."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers = asyncio.Event()
        self.answers.set()
        names = ("open", "prepare", "publish", "listen", "drain", "wait_until_quiet", "stop")
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
            await self.answers.wait()
            return {"listen": (1, 2), "wait_until_quiet": 3}.get(name)

        return method


def links_to_front_ends() -> FrontEndLinks:
    links = FrontEndLinks(Recorder())
    directory = SimpleNamespace(known_versions=[], current=[], started=True)
    engine: Any = SimpleNamespace(max_unread_bytes=1 << 20, load=None, unload=None, directory=directory)
    links.engine = engine
    return links


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
    links = links_to_front_ends()
    facts: Any = SimpleNamespace(name="rain", version="1", number=3)
    await links.prepare(facts, None)
    processes = FrontEndSupervisor(Settings(bundle=tmp_path, address="127.0.0.1:0", metrics_port=0), 1, links)
    async with asyncio.timeout(10):
        await processes.listen()
        await processes.stop_listening(0)
    assert child.asked == ["open", "prepare", "publish", "listen", "stop"]


async def test_a_drain_waits_for_the_front_ends_that_answer_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    children = [Child(), Child()]

    async def spawn(engine: socket.socket, http_socket: socket.socket, number: int) -> Child:
        return await children[number - 1].spawn(engine, http_socket, number)

    monkeypatch.setattr(front_end_supervisor, "spawn_process", spawn)
    monkeypatch.setattr(front_end_supervisor, "_SILENT_S", 0.2)
    settings = Settings(bundle=tmp_path, address="127.0.0.1:0", metrics_port=0)
    processes = FrontEndSupervisor(settings, 2, links_to_front_ends())
    async with asyncio.timeout(10):
        await processes.listen()
        children[1].answers.clear()
        processes.drain()
        await processes.wait_until_quiet(time.monotonic() + 1000)
        await processes.stop_listening(1000)
    assert processes.unanswered_count == 3
    assert "stop" in children[0].asked
    assert "stop" not in children[1].asked
