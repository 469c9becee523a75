"""The engine in this process: the repository of models, the scheduler and the devices."""

import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_server.engine.description import batches_reply, description
from headwaiter_server.metrics.page import Page, write_page
from headwaiter_server.metrics.recorder import Recorder
from headwaiter_server.metrics.totals import Totals
from headwaiter_server.models.directory import ModelDirectory
from headwaiter_server.models.repository import ModelRepository
from headwaiter_server.models.running_model import RunningModel
from headwaiter_server.models.served_model import ServedModel
from headwaiter_server.models.versions import ModelVersions
from headwaiter_server.runtime.attention_weights import AttentionSelection, AttentionWeights
from headwaiter_server.scheduling.admission import QueueLimits
from headwaiter_server.scheduling.attention_queue import MAX_WAITING
from headwaiter_server.scheduling.cost import Shape
from headwaiter_server.scheduling.fair_start import Priority
from headwaiter_server.scheduling.job import Interval, Job, Outcome
from headwaiter_server.scheduling.scheduler import Scheduler
from headwaiter_server.scheduling.worker import Worker
from headwaiter_server.settings.flags import Settings
from headwaiter_server.settings.tenants import Tenant

# Descriptions of models, pages of metrics, and requests for the counts of front ends.
_OTHER_UNREAD_BYTES = 256 << 20


class LocalEngine:
    """Runs models in this process; see `Engine`. Create an engine in a running event loop.

    Args:
        settings: the settings of the server.
        recorder: records the metrics of all models.

    Attributes:
        scheduler: runs the batches of all models.
        versions: the versions of all models.
    """

    def __init__(self, settings: Settings, recorder: Recorder) -> None:
        self._settings, self._recorder = settings, recorder
        self.directory = ModelDirectory(settings.default_model, single=settings.bundle is not None)
        workers = [
            Worker(device=device, instance=instance)
            for device in settings.devices
            for instance in range(settings.instances)
        ]
        self.scheduler = Scheduler(workers, QueueLimits(settings.max_queue_tokens, settings.max_queue_s))
        self.versions = ModelVersions(settings, self.scheduler, recorder, self.directory)
        self._repository = ModelRepository(settings, self.versions, self.directory)

    async def start(self) -> None:
        """Load, check and warm up the models.

        Raises:
            ModelRefused: no model can be served.
        """
        await self._repository.start()

    async def failed(self) -> None:
        """Wait until the scheduler ends, and raise its error if it has failed: `DeviceLost` if a device is dead."""
        await self.scheduler.failed()

    async def drain(self, timeout_s: float) -> int:
        """Load no more versions, answer the admitted requests, and stop.

        Returns:
            Number of requests without an answer in time.
        """
        self._repository.drain()
        return await self.scheduler.drain(timeout_s)

    async def check_room(
        self, served: ServedModel, tokens: int, deadline_s: float, priority: Priority, tenant: Tenant
    ) -> None:
        """See `Engine`."""
        queue, shape = self._running(served).queue, Shape.of([1] * tokens)
        self.scheduler.admit(queue, shape, deadline_s, priority, tenant=tenant)

    async def submit(self, served: ServedModel, job: Job, on_queued: Callable[[], None]) -> Outcome:
        """See `Engine`."""
        return await self.scheduler.submit(self._running(served).queue, job, on_queued)

    async def check_attention_room(self, served: ServedModel) -> None:
        """See `Engine`."""
        self._running(served).attention_queue.admit()

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
        queue = self._running(served).attention_queue
        return await queue.submit(sequence, selection, deadline_s=deadline_s, on_queued=on_queued)

    async def describe(self, served: ServedModel) -> pb.GetModelResponse:
        """See `Engine`."""
        return description(self._running(served), self._settings.provider)

    async def batches(self, models: Sequence[ServedModel]) -> pb.ListBatchesResponse:
        """See `Engine`."""
        return batches_reply(map(self._running, models), time.monotonic())

    async def totals(self, models: Sequence[ServedModel]) -> list[Totals]:
        """See `Engine`."""
        return [served.recorder.statistics.totals() for served in models]

    async def load(self, name: str) -> None:
        """See `Engine`."""
        await self._repository.load(name)

    async def load_on_demand(self, name: str) -> None:
        """See `Engine`."""
        await self._repository.load_on_demand(name)

    async def unload(self, name: str) -> None:
        """See `Engine`."""
        await self._repository.unload(name)

    async def metrics(self, accept: str) -> Page:
        """See `Engine`."""
        return await write_page(self._recorder.registry, accept)

    @property
    def max_unread_bytes(self) -> int:
        """What a front end may leave unread: all replies of a front end, and the attention weights that wait."""
        settings = self._settings
        return settings.max_reply_bytes + 2 * MAX_WAITING * settings.max_attend_bytes + _OTHER_UNREAD_BYTES

    def running_model(self, number: int) -> RunningModel:
        """Return a loaded version by the number of its load; see `ModelVersions.running_model`."""
        return self.versions.running_model(number)

    def _running(self, served: ServedModel) -> RunningModel:
        return self.running_model(served.facts.number)
