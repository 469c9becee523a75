"""A worker's thread keeps no object of a function that has returned or failed."""

import gc
import time
import weakref
from collections.abc import Iterator

import pytest

from headwaiter_server.concurrency.worker_thread import WorkerThread


class Session:
    """An object with memory that its replacement needs."""


@pytest.fixture
def _only_references_free_memory() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_only_references_free_memory")
async def test_an_error_keeps_no_local_variable_of_its_frames_or_of_its_causes() -> None:
    sessions: list[weakref.ref[Session]] = []

    def fail_with(session: Session) -> None:
        sessions.append(weakref.ref(session))
        raise OSError("the GPU fell off the bus")

    def fail() -> None:
        session = Session()
        try:
            fail_with(session)
        except OSError as error:
            raise RuntimeError from error

    thread = WorkerThread("device", time.monotonic)
    with pytest.raises(RuntimeError) as kept:
        await thread.run(fail, limit_s=30.0)
    thread.close()
    assert [session() for session in sessions] == [None]
    assert isinstance(kept.value.__cause__, OSError)
    names = [entry.name for entry in kept.traceback]
    assert names[-1] == "fail"  # The log can still name the lines.
