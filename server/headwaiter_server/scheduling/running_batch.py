"""A batch that a worker has, and whose results are not handed out."""

import asyncio
from dataclasses import dataclass

from headwaiter_server.scheduling.batch_result import BatchResult
from headwaiter_server.scheduling.planner import CloseReason
from headwaiter_server.scheduling.queued_request import Batch
from headwaiter_server.scheduling.worker import Worker


@dataclass(eq=False, slots=True)
class RunningBatch:
    """A batch that a worker runs or will run next.

    Attributes:
        predicted_end_s: on the scheduler's clock.
        result: see `Worker.run`.
    """

    worker: Worker
    sequences: Batch
    close_reason: CloseReason
    predicted_end_s: float
    result: "asyncio.Future[BatchResult | None]"
