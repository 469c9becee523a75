"""What computes on the CPU lets what receives requests go first, and fails nowhere for want of a right to."""

import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from headwaiter_server.runtime.graph import EncoderGraph
from headwaiter_server.runtime.priority import give_way
from tests.e2e.inside import connect, serving

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread has no priority of its own")


def _niceness(thread_id: int) -> int:
    return os.getpriority(os.PRIO_PROCESS, thread_id)


def _lower(niceness: int) -> int:
    return min(19, niceness + 5)


def test_a_thread_gives_way_alone_and_those_do_that_it_begins() -> None:
    own = _niceness(0)
    with ThreadPoolExecutor(1, initializer=give_way) as outer:
        assert outer.submit(_niceness, 0).result() == _lower(own)

        def begin_another() -> list[int]:
            with ThreadPoolExecutor(1) as plain, ThreadPoolExecutor(1, initializer=give_way) as again:
                return [inner.submit(_niceness, 0).result() for inner in (plain, again)]

        assert outer.submit(begin_another).result() == [_lower(own)] * 2
    assert _niceness(0) == own


def test_where_it_is_forbidden_all_works_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbid(*_: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", forbid)
    give_way()


def test_the_threads_of_a_cpu_session_give_way(text_bundle: Path) -> None:
    def threads() -> set[int]:
        return {int(task.name) for task in Path("/proc/self/task").iterdir()}

    def nice_ones() -> int:
        found = 0
        for thread in threads() - before:
            with suppress(ProcessLookupError):
                found += _niceness(thread) == _lower(_niceness(0))
        return found

    before = threads()
    graph = EncoderGraph.open(text_bundle / "packed-cpu.fp32.onnx", "cpu", threads=3)
    # The calling thread is the third of the session. The one that opened it may take a moment to end.
    while nice_ones() > 2:
        time.sleep(0.01)
    assert nice_ones() == 2
    del graph


async def test_the_device_of_a_server_on_the_cpu_gives_way(text_bundle: Path) -> None:
    before = set(threading.enumerate())
    async with serving(text_bundle) as server, connect(server) as client:
        # By its first answer a thread has its priority.
        await client.encode(["bread"])
        begun = set(threading.enumerate()) - before
        devices = [thread.native_id or 0 for thread in begun if thread.name == "device"]
        assert [_niceness(device) for device in devices] == [_lower(_niceness(0))]
