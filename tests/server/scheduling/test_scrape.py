"""A scrape of the metrics reads the queue in another thread, while the event loop changes the queue."""

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from headwaiter_server.scheduling.job import Job
from headwaiter_server.scheduling.model_queue import ModelQueue
from headwaiter_server.scheduling.queued_request import QueuedRequest, Sequence
from headwaiter_server.settings.tenants import Tenant
from tests.support.server.fakes import Harness
from tests.support.server.sequences import waiting

SECONDS = 0.3


@pytest.fixture
def _frequent_switches() -> Iterator[None]:
    """Let Python switch between threads after every few instructions, so that a thread sees every state."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval_s)


def fill_and_empty_queue(queue: ModelQueue, sequence: Sequence) -> None:
    queue.pending.add(sequence)
    queue.pending.remove(sequence)


def add_work_of_another_tenant(queue: ModelQueue, sequence: Sequence) -> None:
    sequence.tenant = Tenant(str(len(queue.pending._tenants) % 500))
    fill_and_empty_queue(queue, sequence)


def plan_and_start_batch(queue: ModelQueue, sequence: Sequence) -> None:
    ((worker, session),) = queue.sessions.items()
    worker._batches.append((session, (sequence,), 1.0))
    worker._batches.pop()


@pytest.mark.usefixtures("_frequent_switches")
@pytest.mark.parametrize("change", [fill_and_empty_queue, add_work_of_another_tenant, plan_and_start_batch])
async def test_the_queue_can_be_read_in_another_thread_while_it_changes(
    change: Callable[[ModelQueue, Sequence], None], harness: Harness
) -> None:
    failures: list[Exception] = []
    done = threading.Event()
    ((worker, session),) = harness.queue.sessions.items()
    worker._batches.append((session, (), 1.0))

    def scrape() -> None:
        queue = harness.queue
        while not done.is_set():
            try:
                wait_s = harness.scheduler.estimated_wait_s(queue)
                assert min(queue.queued_sequences, queue.queued_tokens, wait_s) >= 0
            except Exception as error:  # noqa: BLE001 - the test reports every error
                failures.append(error)

    thread = threading.Thread(target=scrape, daemon=True)
    thread.start()
    sequence = waiting(3, 0)
    sequence.request = QueuedRequest(harness.queue, Job([sequence.values]), asyncio.Future())
    end_s = time.monotonic() + SECONDS
    while time.monotonic() < end_s and not failures:
        change(harness.queue, sequence)
    done.set()
    thread.join()
    worker._batches.clear()
    assert failures == []
