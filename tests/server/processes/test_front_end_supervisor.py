"""The processes of the front ends: which ports they keep, and in which order a front end starts."""

import asyncio
import re
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headwaiter_server.front_end import CannotListen
from headwaiter_server.metrics.recorder import Recorder
from headwaiter_server.models.directory import ModelDirectory
from headwaiter_server.processes import front_end_supervisor
from headwaiter_server.processes.front_end_links import FrontEndLinks
from headwaiter_server.processes.front_end_supervisor import FrontEndSupervisor
from headwaiter_server.processes.link import Link
from headwaiter_server.settings.credentials import Credentials, Tokens
from headwaiter_server.settings.flags import Settings
from headwaiter_server.settings.tenants import UNNAMED

pytestmark = pytest.mark.usefixtures("starts_processes")


class Child:
    """Stands in for the process of a front end: notes what the engine asks, and may stop to answer.

    Attributes:
        credentials: the credentials that the front end gets.
        failing_uses: how many further credentials the front end cannot use.
        on_listen: called when the engine asks the front end to listen.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.credentials: asyncio.Queue[Credentials] = asyncio.Queue()
        self.failing_uses = 0
        self.on_listen: Callable[[], None] = lambda: None
        self.answers = asyncio.Event()
        self.answers.set()
        names = ("open", "prepare", "publish", "listen", "use", "drain", "wait_until_quiet", "stop")
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
            if name == "use" and self.failing_uses:
                self.failing_uses -= 1
                raise OSError("no file descriptor is left")
            for each in arguments:
                if isinstance(each, Credentials):
                    self.credentials.put_nowait(each)
            if name == "listen":
                self.on_listen()
            await self.answers.wait()
            return {"listen": (1, 2, 3), "wait_until_quiet": 3}.get(name)

        return method


def links_to_front_ends() -> FrontEndLinks:
    versions, directory = SimpleNamespace(followers=[]), ModelDirectory("")
    engine: Any = SimpleNamespace(
        max_unread_bytes=1 << 20, load=None, unload=None, versions=versions, directory=directory
    )
    return FrontEndLinks(engine, Recorder())


def supervisor(
    tmp_path: Path, links: FrontEndLinks, count: int = 1, credentials: Credentials | None = None
) -> FrontEndSupervisor:
    """Return the supervisor of front ends whose engine has no models."""
    settings = Settings(bundle=tmp_path, address="127.0.0.1:0", metrics_port=0)
    return FrontEndSupervisor(settings, count, links, credentials or Credentials())


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


def test_ended_connections_of_a_server_that_did_not_share_the_port_do_not_keep_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as before:
        place = before.getsockname()
        with socket.create_connection(place) as caller, before.accept()[0] as ended:
            ended.close()
            assert caller.recv(1) == b""
    with ExitStack() as stack:
        sockets, _ = front_end_supervisor._reserve(f"127.0.0.1:{place[1]}")
        assert [stack.enter_context(each).getsockname() for each in sockets] == [place]


def test_a_host_of_several_addresses_keeps_one_port(monkeypatch: pytest.MonkeyPatch) -> None:
    places = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, 0)) for address in ("127.0.0.2", "127.0.0.3")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: places)
    with ExitStack() as stack:
        sockets, address = front_end_supervisor._reserve("two.example:0")
        kept = [stack.enter_context(each).getsockname() for each in sockets]
    port = int(address.rpartition(":")[2])
    assert kept == [("127.0.0.2", port), ("127.0.0.3", port)]


async def test_a_front_end_knows_the_models_before_it_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = Child()
    monkeypatch.setattr(front_end_supervisor, "spawn_process", child.spawn)
    links = links_to_front_ends()
    processes = supervisor(tmp_path, links)
    facts: Any = SimpleNamespace(name="rain", version="1", number=3)
    await links.prepare(facts, None)
    async with asyncio.timeout(10):
        await processes.listen()
        await processes.stop_listening(0)
    assert child.asked == ["open", "prepare", "publish", "listen", "stop"]


async def test_a_front_end_gets_credentials_that_change_while_it_starts_and_later_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = Child()
    monkeypatch.setattr(front_end_supervisor, "spawn_process", child.spawn)
    first, second, third = (Credentials(Tokens.of((UNNAMED, token))) for token in ("1", "2", "3"))
    processes = supervisor(tmp_path, links_to_front_ends(), credentials=first)
    child.on_listen = lambda: processes.use(second)
    async with asyncio.timeout(10):
        await processes.listen()
        assert [await child.credentials.get() for _ in range(2)] == [first, second]
        processes.use(third)
        assert await child.credentials.get() == third
        await processes.stop_listening(0)


async def test_credentials_that_a_front_end_could_not_use_are_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = Child()
    monkeypatch.setattr(front_end_supervisor, "spawn_process", child.spawn)
    monkeypatch.setattr(front_end_supervisor, "_UPDATE_PAUSE_S", 0.01)
    old, new = (Credentials(Tokens.of((UNNAMED, token))) for token in ("1", "2"))
    processes = supervisor(tmp_path, links_to_front_ends(), credentials=old)
    async with asyncio.timeout(10):
        await processes.listen()
        child.failing_uses = 2
        processes.use(new)
        assert [await child.credentials.get() for _ in range(2)] == [old, new]
        await processes.stop_listening(0)
    assert child.failing_uses == 0


async def test_a_drain_waits_for_the_front_ends_that_answer_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    children = [Child(), Child()]

    async def spawn(engine: socket.socket, sockets: Any, number: int, settings: Settings) -> Child:
        return await children[number - 1].spawn(engine, sockets, number, settings)

    monkeypatch.setattr(front_end_supervisor, "spawn_process", spawn)
    monkeypatch.setattr(front_end_supervisor, "_DRAIN_ANSWER_S", 0.2)
    processes = supervisor(tmp_path, links_to_front_ends(), 2)
    async with asyncio.timeout(10):
        await processes.listen()
        children[1].answers.clear()
        processes.drain()
        await processes.wait_until_quiet(time.monotonic() + 1000)
        await processes.stop_listening(1000)
    assert processes.unanswered_count == 3
    assert "stop" in children[0].asked
    assert "stop" not in children[1].asked
