"""The processes of the front ends: in which order a front end starts."""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headwaiter_server.metrics.recorder import Recorder
from headwaiter_server.processes import front_end_supervisor
from headwaiter_server.processes.front_end_links import FrontEndLinks
from headwaiter_server.processes.front_end_supervisor import FrontEndSupervisor
from headwaiter_server.processes.link import Link
from headwaiter_server.settings.credentials import Credentials, Tokens
from headwaiter_server.settings.flags import Settings


class Child:
    """Stands in for the process of a front end: notes what the engine asks, and the credentials that it gets.

    Attributes:
        on_listen: called when the engine asks the front end to listen.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.credentials: list[Credentials] = []
        self.on_listen: Callable[[], None] = lambda: None
        names = ("open", "prepare", "publish", "listen", "use", "stop")
        self._link = Link("the engine", {name: self._method(name) for name in names})

    async def spawn(self, engine: socket.socket, _: socket.socket, number: int, settings: Settings) -> "Child":
        await self._link.open(engine.dup())
        return self

    async def wait(self) -> int:
        await asyncio.wait({self._link.closed})
        return 0

    def kill(self) -> None: ...

    def _method(self, name: str) -> Any:
        async def method(*arguments: Any) -> Any:
            self.asked.append(name)
            self.credentials += [each for each in arguments if isinstance(each, Credentials)]
            if name == "listen":
                self.on_listen()
            return (1, 2, 3) if name == "listen" else None

        return method


def supervisor(tmp_path: Path, links: FrontEndLinks) -> FrontEndSupervisor:
    """Return the supervisor of one front end, whose engine has no models."""
    directory = SimpleNamespace(known_versions=[], current=[], started=True)
    engine: Any = SimpleNamespace(max_unread_bytes=1 << 20, load=None, unload=None, directory=directory)
    links.engine = engine
    return FrontEndSupervisor(Settings(bundle=tmp_path, address="127.0.0.1:0", metrics_port=0), 1, links)


async def test_a_front_end_knows_the_models_before_it_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = Child()
    monkeypatch.setattr(front_end_supervisor, "spawn_process", child.spawn)
    links = FrontEndLinks(Recorder())
    processes = supervisor(tmp_path, links)
    facts: Any = SimpleNamespace(name="rain", version="1", number=3)
    await links.prepare(facts, None)
    async with asyncio.timeout(10):
        await processes.listen(Credentials())
        await processes.stop_listening(0)
    assert child.asked == ["open", "prepare", "publish", "listen", "stop"]


async def test_a_front_end_gets_credentials_that_change_while_it_starts_and_later_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = Child()
    monkeypatch.setattr(front_end_supervisor, "spawn_process", child.spawn)
    processes = supervisor(tmp_path, FrontEndLinks(Recorder()))
    first, second, third = (Credentials(Tokens.of(("", token))) for token in ("1", "2", "3"))
    child.on_listen = lambda: processes.use(second)
    async with asyncio.timeout(10):
        await processes.listen(first)
        processes.use(third)
        await processes.stop_listening(0)
    assert child.credentials == [first, second, third]
