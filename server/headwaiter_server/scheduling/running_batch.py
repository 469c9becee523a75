"""A batch that a worker was given, and whose results are not handed out."""

from asyncio import Future
from dataclasses import dataclass

from headwaiter_server.scheduling.batch_result import BatchResult
from headwaiter_server.scheduling.model_queue import ModelQueue
from headwaiter_server.scheduling.queued_request import Batch
from headwaiter_server.scheduling.worker import Worker


@dataclass(eq=False, slots=True)
class RunningBatch:
    """A batch that a worker runs or will run next.

    Attributes:
        result: the result of the batch, or the device's error; see `Worker.run`.
    """

    queue: ModelQueue
    worker: Worker
    sequences: Batch
    result: Future[BatchResult | None]
