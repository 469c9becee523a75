"""The threads of a client: their number, their end, and processes that fork."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headwaiter_client import Client, FakeEncoder, HeadwaiterError, worker_threads
from headwaiter_client.worker_threads import MIN_THREADS, WorkerThreads
from tests.support.client.client_runner import TEXTS

_CALLERS = 16


class _SlowEncoder(FakeEncoder):
    """Takes a while for each request, and counts the threads of the client meanwhile."""

    def __init__(self) -> None:
        super().__init__(max_request_sequences=16)
        self.most_threads = 0
        self._others = set(_threads())

    def unary(self, *call: Any) -> bytes:
        self.most_threads = max(self.most_threads, len(set(_threads()) - self._others))
        time.sleep(0.02)
        return super().unary(*call)


def _threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "headwaiter"]


def test_many_callers_with_long_lists_share_a_limited_number_of_threads() -> None:
    fake = _SlowEncoder()
    with Client(transport=fake) as client, ThreadPoolExecutor(_CALLERS) as callers:
        lists = [callers.submit(client.encode, TEXTS[:128]) for _ in range(_CALLERS)]
        assert [len(each.result(60).lengths) for each in lists] == [128] * _CALLERS
    assert MIN_THREADS / 2 < fake.most_threads <= MIN_THREADS


def test_a_list_is_answered_while_all_threads_are_busy() -> None:
    with Client(transport=FakeEncoder()) as client:
        expected = client.encode(TEXTS).lengths.tolist()
        released = threading.Event()
        for _ in range(MIN_THREADS):
            client._workers.submit(released.wait)
        assert client.encode(TEXTS).lengths.tolist() == expected
        assert len(list(client.encode_stream(TEXTS))) == len(TEXTS)
        released.set()


def test_threads_end_when_they_are_idle() -> None:
    workers = WorkerThreads(2)
    thread = workers.submit(threading.current_thread).result(30)
    thread.join(30)
    assert not thread.is_alive()
    assert workers.submit(lambda: "again").result(30) == "again"


def test_the_caller_does_the_work_if_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with Client(transport=FakeEncoder()) as client:
        monkeypatch.setattr(threading.Thread, "start", start)
        assert len(client.encode(TEXTS).lengths) == len(TEXTS)


def test_cancelled_work_does_not_run() -> None:
    workers, released, ran = WorkerThreads(1), threading.Event(), []
    workers.submit(released.wait)
    cancelled = workers.submit(lambda: ran.append("cancelled"))
    last = workers.submit(lambda: ran.append("last"))
    cancelled.cancel()
    released.set()
    last.result(30)
    assert ran == ["last"]


def test_threads_start_again_after_one_start_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    start, starts = threading.Thread.start, []

    def fail_once(thread: threading.Thread) -> None:
        starts.append(thread)
        if len(starts) == 1:
            raise RuntimeError("can't start new thread")
        start(thread)

    workers, meeting = WorkerThreads(2), threading.Barrier(2)
    monkeypatch.setattr(threading.Thread, "start", fail_once)
    first = workers.submit(lambda: "first")
    assert workers.take(first)
    both = [workers.submit(lambda: meeting.wait(30)) for _ in range(2)]
    assert sorted(work.result(5) for work in both) == [0, 1]


def test_a_stream_whose_thread_cannot_start_raises_an_error_of_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with Client(transport=FakeEncoder()) as client:
        monkeypatch.setattr(threading.Thread, "start", start)
        with pytest.raises(HeadwaiterError, match="can't start new thread"):
            next(client.encode_stream(TEXTS))


def test_the_threads_of_another_process_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    workers, started, released = WorkerThreads(1), threading.Event(), threading.Event()
    workers.submit(lambda: started.set() or released.wait())  # type: ignore[func-returns-value]
    assert started.wait(30)
    # As in a child process, where the busy thread does not exist. Threads of other tests do exist, and may be waiting.
    monkeypatch.setattr(worker_threads, "_all_workers", {workers})
    worker_threads._reset_all()
    assert workers.submit(lambda: "done").result(30) == "done"
    released.set()


@pytest.mark.usefixtures("starts_processes")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_no_work_is_lost_if_several_threads_of_a_child_process_submit_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = WorkerThreads(4)
    child = os.fork()
    if child == 0:
        condition, started, done = threading.Condition, threading.Barrier(4), []

        def slow_condition(*lock: threading.Lock) -> threading.Condition:
            time.sleep(0.05)  # A thread that would replace the queue now would lose the work of the others.
            return condition(*lock)

        def submit() -> None:
            started.wait(30)
            done.append(workers.submit(lambda: 1).result(5))

        monkeypatch.setattr(threading, "Condition", slow_condition)
        callers = [threading.Thread(target=submit) for _ in range(4)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join(30)
        os._exit(len(done))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4


@pytest.mark.usefixtures("starts_processes")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_process_starts_threads_of_its_own() -> None:
    with Client(transport=FakeEncoder()) as client:
        client.encode(TEXTS)
        child = os.fork()
        if child == 0:
            os._exit(len(client.encode(TEXTS).lengths) == len(TEXTS))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
