"""The engine in this process: the repository of models, the scheduler and the devices."""

import time
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_server.engine.description import batches_reply, description
from headwaiter_server.metrics.page import Page, write_page
from headwaiter_server.metrics.recorder import Recorder
from headwaiter_server.metrics.totals import Totals
from headwaiter_server.models.directory import ModelDirectory, starting
from headwaiter_server.models.repository import Followers, ModelRepository
from headwaiter_server.models.running_model import RunningModel
from headwaiter_server.models.served_model import ServedModel
from headwaiter_server.runtime.attention_weights import AttentionSelection, AttentionWeights
from headwaiter_server.scheduling.admission import QueueLimits
from headwaiter_server.scheduling.attention_weights import MAX_WAITING
from headwaiter_server.scheduling.cost import Shape
from headwaiter_server.scheduling.fair_start import Priority
from headwaiter_server.scheduling.job import Interval, Job, Outcome
from headwaiter_server.scheduling.scheduler import Scheduler
from headwaiter_server.scheduling.worker import Worker
from headwaiter_server.settings.flags import Settings

# Descriptions of models, pages of metrics, and requests for the counts of front ends.
_OTHER_UNREAD_BYTES = 256 << 20


class LocalEngine:
    """Runs models in this process; see `Engine`.

    Args:
        settings: the settings of the server.
        recorder: records the metrics of all models.
        followers: other processes that answer requests with the models.
        on_change: called when the directory has changed.
    """

    def __init__(
        self, settings: Settings, recorder: Recorder, followers: Followers, on_change: Callable[[], None]
    ) -> None:
        self._settings, self._recorder = settings, recorder
        self._followers, self._on_change = followers, on_change
        self.directory = ModelDirectory(settings.default_model, single=settings.bundle is not None)
        self._scheduler: Scheduler | None = None
        self._repository: ModelRepository | None = None

    async def start(self) -> None:
        """Load, check and warm up the models.

        Raises:
            ModelRefused: no model can be served.
        """
        settings = self._settings
        workers = [
            Worker(device=device, instance=instance)
            for device in settings.devices
            for instance in range(settings.instances)
        ]
        limits = QueueLimits(settings.max_queue_tokens, settings.max_queue_s)
        self._scheduler = Scheduler(workers, limits)
        self._repository = ModelRepository(
            settings, self._scheduler, self._recorder, self.directory, self._followers, self._on_change
        )
        await self._repository.start()

    async def failed(self) -> None:
        """Wait until the scheduler ends, and raise its error if it has failed: `DeviceLost` if a device is dead."""
        await self.scheduler.failed()

    async def drain(self, timeout_s: float) -> int:
        """Load no more versions, answer the admitted requests, and stop.

        Returns:
            Number of requests without an answer in time.
        """
        unanswered = 0
        if self._repository is not None:
            self._repository.drain()
        if self._scheduler is not None:
            unanswered = await self._scheduler.drain(timeout_s)
        return unanswered

    async def check_room(self, served: ServedModel, tokens: int, deadline_s: float, priority: Priority) -> None:
        """See `Engine`."""
        self.scheduler.admit(_running(served).queue, Shape.of([1] * tokens), deadline_s, priority)

    async def submit(self, served: ServedModel, job: Job, on_queued: Callable[[], None]) -> Outcome:
        """See `Engine`."""
        return await self.scheduler.submit(_running(served).queue, job, on_queued)

    async def check_attention_room(self, served: ServedModel) -> None:
        """See `Engine`."""
        _running(served).attention_queue.admit()

    async def attend(
        self,
        served: ServedModel,
        sequence: NDArray[np.generic],
        selection: AttentionSelection,
        *,
        deadline_s: float,
        on_queued: Callable[[], None],
    ) -> tuple[AttentionWeights, Interval]:
        """See `Engine`."""
        queue = _running(served).attention_queue
        return await queue.submit(sequence, selection, deadline_s=deadline_s, on_queued=on_queued)

    async def describe(self, served: ServedModel) -> pb.GetModelResponse:
        """See `Engine`."""
        return description(_running(served), self._settings.provider)

    async def batches(self, models: Sequence[ServedModel]) -> pb.ListBatchesResponse:
        """See `Engine`."""
        return batches_reply(map(_running, models), time.monotonic())

    async def totals(self, models: Sequence[ServedModel]) -> list[Totals]:
        """See `Engine`."""
        return [served.recorder.statistics.totals() for served in models]

    async def load(self, name: str) -> None:
        """See `Engine`."""
        await self._running_repository.load(name)

    async def unload(self, name: str) -> None:
        """See `Engine`."""
        await self._running_repository.unload(name)

    async def metrics(self, accept: str) -> Page:
        """See `Engine`."""
        return await write_page(self._recorder.registry, accept)

    @property
    def scheduler(self) -> Scheduler:
        """Runs the batches of all models; only after `start` was called."""
        assert self._scheduler is not None
        return self._scheduler

    @property
    def max_unread_bytes(self) -> int:
        """What a front end may leave unread: all replies of a front end, and the attention weights that wait."""
        settings = self._settings
        return settings.max_reply_bytes + 2 * MAX_WAITING * settings.max_attend_bytes + _OTHER_UNREAD_BYTES

    def running_model(self, number: int) -> RunningModel:
        """Return a loaded model by the number of its load; see `ModelRepository.running_model`."""
        return self._running_repository.running_model(number)

    @property
    def _running_repository(self) -> ModelRepository:
        if self._repository is None:
            raise starting()
        return self._repository


def _running(served: ServedModel) -> RunningModel:
    """Return the model with its queues: in this process, each served model has them."""
    return cast(RunningModel, served)
