"""The engine's side of the sockets to front ends: joining while models change, hanging front ends, faulty requests."""

import asyncio
import pickle
import socket
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headwaiter_proto.rules.errors import HeadwaiterError, Unavailable
from headwaiter_server.metrics.recorder import Recorder
from headwaiter_server.metrics.sums import Counts, read_samples
from headwaiter_server.models.directory import ModelDirectory
from headwaiter_server.processes import front_end_link, front_end_links
from headwaiter_server.processes.front_end_links import FrontEndLinks
from headwaiter_server.processes.link import Link
from headwaiter_server.processes.messages import Kind
from headwaiter_server.processes.remote_engine import RemoteEngine
from headwaiter_server.settings.flags import Settings


def facts(number: int) -> Any:
    return SimpleNamespace(number=number, name=f"model {number}", version="1")


class FrontEnd:
    """A front end that opens tokenizers when a test lets it, and notes what it hears."""

    def __init__(self) -> None:
        self.models: list[int] = []
        self.heard: list[tuple[str, Any]] = []
        self.opens = asyncio.Event()
        self.opens.set()
        self.link = Link(
            "the engine",
            {"prepare": self.prepare, "publish": self.publish, "release": self.release, "counts": self.counts},
        )

    async def prepare(self, facts: Any, _: bytes | None) -> None:
        await self.opens.wait()
        self.models.append(facts.number)

    async def publish(self, _: object, current: list[int], started: bool, leaving: bool) -> None:
        self.heard.append(("publish", current))

    async def release(self, number: int) -> None:
        self.models.remove(number)
        self.heard.append(("release", number))

    async def counts(self) -> Any:
        raise HeadwaiterError("not now")

    def answer_one_request(self, model: int) -> None:
        """Count a request; the engine reads the counts from now on."""
        recorder = Recorder()
        recorder.received()
        recorder.finished((f"model {model}", "1"), "Encode", "OK", 0.01)

        async def counts() -> bytes:
            return pickle.dumps(Counts(read_samples(recorder.registry)[0]))

        self.link._methods["counts"] = counts


class Engine:
    """An engine whose models a test announces."""

    def __init__(self) -> None:
        self.directory = ModelDirectory("")
        self.max_unread_bytes = 1 << 20
        self.load = self.unload = None
        self.versions = SimpleNamespace(followers=[])
        self.links = FrontEndLinks(cast(Any, self), Recorder())
        self.open: list[Link] = []

    async def add(self, front_end: FrontEnd) -> Link:
        ours, theirs = socket.socketpair()
        await front_end.link.open(theirs)
        self.open += [front_end.link, link := await self.links.add(ours, 1)]
        return link

    async def close(self) -> None:
        for link in self.open:
            link.close()
        await asyncio.gather(*(link.closed for link in self.open))


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    made = Engine()
    yield made
    await made.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - the condition has no event
            await asyncio.sleep(0.01)


async def test_a_front_end_that_joins_while_a_model_is_announced_knows_the_model_first(engine: Engine) -> None:
    early, late = FrontEnd(), FrontEnd()
    await engine.links.join(await engine.add(early))
    await engine.links.prepare(facts(1), None)
    late.opens.clear()
    link = await engine.add(late)
    joining = asyncio.create_task(engine.links.join(link))
    early.opens.clear()
    preparing = asyncio.create_task(engine.links.prepare(facts(2), None))
    await asyncio.sleep(0)
    late.opens.set()
    await joining
    assert sorted(late.models) == [1, 2]
    await until(lambda: late.heard == [("publish", [])])
    early.opens.set()
    await preparing
    assert early.models == [1, 2]


async def test_a_model_that_is_released_while_a_front_end_joins_is_released_there_too(engine: Engine) -> None:
    front_end = FrontEnd()
    await engine.links.prepare(facts(1), None)
    front_end.opens.clear()
    joining = asyncio.create_task(engine.links.join(await engine.add(front_end)))
    await asyncio.sleep(0.05)
    await engine.links.release(1)
    front_end.opens.set()
    await joining
    await until(lambda: front_end.models == [])


async def test_a_front_end_that_ends_while_it_joins_does_not_count(engine: Engine) -> None:
    front_end = FrontEnd()
    await engine.links.prepare(facts(1), None)
    front_end.opens.clear()
    joining = asyncio.create_task(engine.links.join(await engine.add(front_end)))
    await asyncio.sleep(0.05)
    front_end.link.close()
    with pytest.raises(Unavailable, match="front end 1"):
        await joining
    assert engine.links._joined == set()


async def test_a_front_end_that_hangs_is_closed_and_a_slow_one_is_not(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front_end_link, "_SILENT_S", 1.0)
    monkeypatch.setattr(front_end_links, "_COUNT_INTERVAL_S", 0.05)
    monkeypatch.setattr(front_end_link, "_COUNT_TIMEOUT_S", 0.05)
    slow = FrontEnd()

    async def count_slowly() -> Any:
        await asyncio.sleep(0.2)
        raise HeadwaiterError("late")

    slow.link._methods["counts"] = count_slowly
    slow_link = await engine.add(slow)
    await engine.links.join(slow_link)
    ours, hung = socket.socketpair()
    with hung:
        hung_link = await engine.links.add(ours, 2)
        async with asyncio.timeout(10):
            await hung_link.closed
    assert not slow_link.closed.done()


@pytest.mark.parametrize("fails", [True, False], ids=["fails", "takes too long"])
async def test_a_front_end_that_opens_no_tokenizer_is_closed(
    fails: bool, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise HeadwaiterError("no tokenizer")

    front_end = FrontEnd()
    link = await engine.add(front_end)
    await engine.links.join(link)
    if fails:
        front_end.link._methods["prepare"] = fail
    else:
        monkeypatch.setattr(front_end_link, "_PREPARE_S", 0.05)
        front_end.opens.clear()
    async with asyncio.timeout(10):
        await engine.links.prepare(facts(1), None)
        await link.closed


async def test_a_request_that_cannot_be_read_fails_alone(engine: Engine) -> None:
    front_end = FrontEnd()
    link = await engine.add(front_end)
    with pytest.raises(HeadwaiterError, match="between processes"):
        await front_end.link.ask(Kind.REQUEST, [b"no request"])
    assert not link.closed.done()


async def test_a_pause_of_the_engine_costs_no_front_end_that_has_answered_meanwhile(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front_end_link, "_PREPARE_S", 0.1)
    front_end = FrontEnd()
    link = await engine.add(front_end)
    await engine.links.join(link)

    async def answer_before_the_pause(*_: object) -> None:
        # The loop writes the answer into the socket, then pauses, then reads the answer when the time is over.
        asyncio.get_running_loop().call_later(0, time.sleep, 0.2)

    front_end.link._methods["prepare"] = answer_before_the_pause
    await engine.links.prepare(facts(1), None)
    assert not link.closed.done()


@pytest.mark.parametrize("ends_first", [True, False])
async def test_the_metrics_of_an_unloaded_model_go_also_if_their_front_end_has_ended(
    engine: Engine, ends_first: bool
) -> None:
    front_end = FrontEnd()
    link = await engine.add(front_end)
    for number in (1, 2):
        await engine.links.prepare(facts(number), None)
    # The directory knows a version until it is unloaded.
    unloading: Any = SimpleNamespace(name="model 1", version="1", number=1, facts=None, status=lambda: None)
    engine.directory.update([unloading], {})
    await engine.links.join(link)

    async def counted(model: int) -> bool:
        page = (await engine.links.pages.get("")).content
        return f'headwaiter_requests_total{{code="OK",method="Encode",model="model {model}"'.encode() in page

    async def end() -> None:
        link.close()
        await link.closed
        await asyncio.sleep(0)

    front_end.answer_one_request(1)
    assert (await counted(1), await counted(2)) == (True, False)
    if ends_first:
        await end()
        # What an ended front end has counted stays, until the model is unloaded.
        assert await counted(1)
    await engine.links.release(1)
    if not ends_first:
        await end()
    assert not await counted(1)


async def test_the_metrics_of_a_version_that_is_loaded_again_start_from_zero_as_in_one_process(engine: Engine) -> None:
    def loaded(number: int) -> Any:
        labels = ("model 1", "1")
        return SimpleNamespace(number=number, labels=labels, name=labels[0], version=labels[1], facts=facts(number))

    front_end = FrontEnd()
    link = await engine.add(front_end)
    await engine.links.prepare(facts(1), None)
    engine.directory.update([], {"model 1": loaded(1)})
    await engine.links.join(link)
    front_end.answer_one_request(1)
    await engine.links.pages.get("")
    link.close()
    await link.closed
    await asyncio.sleep(0)
    for number, count in ((1, 1), (2, 0)):
        engine.directory.update([], {"model 1": loaded(number)})
        page = (await engine.links.pages.get("")).content
        assert page.count(b'headwaiter_requests_total{code="OK",method="Encode",model="model 1"') == count


async def test_a_front_end_starts_its_metrics_from_zero_when_a_version_is_loaded_again(tmp_path: Path) -> None:
    recorder = Recorder()
    front_end = RemoteEngine(Settings(bundle=tmp_path), recorder, Link("the engine", {}))

    async def serve(number: int) -> None:
        again: Any = SimpleNamespace(number=number, name="a", version="1")
        await front_end.methods["prepare"](again, None)
        await front_end.methods["publish"]([], [number], True, False)

    def requests() -> float | None:
        labels = {"model": "a", "version": "1", "method": "Encode", "code": "OK"}
        return recorder.registry.get_sample_value("headwaiter_requests_total", labels)

    await serve(1)
    for number, before in ((1, None), (1, 1), (2, None)):
        await serve(number)
        assert requests() == before
        recorder.received()
        recorder.finished(("a", "1"), "Encode", "OK", 0.01)
    assert requests() == 1
