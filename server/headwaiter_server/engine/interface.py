"""What the services ask of the engine, which runs in the same process or in another one."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_server.metrics.page import Page
from headwaiter_server.metrics.totals import Totals
from headwaiter_server.models.directory import ModelDirectory
from headwaiter_server.models.served_model import ServedModel
from headwaiter_server.runtime.attention_weights import AttentionSelection, AttentionWeights
from headwaiter_server.scheduling.fair_start import Priority
from headwaiter_server.scheduling.job import Interval, Job, Outcome
from headwaiter_server.settings.tenants import Tenant


class Engine(Protocol):
    """Runs models.

    All times are on `time.monotonic`, which all processes of a host share.

    Attributes:
        directory: the models.
    """

    directory: ModelDirectory

    async def check_room(
        self, served: ServedModel, tokens: int, deadline_s: float, priority: Priority, tenant: Tenant
    ) -> None:
        """Refuse a request as `submit` would refuse it now, if its sequences had this many tokens in all."""
        ...

    async def submit(self, served: ServedModel, job: Job, on_queued: Callable[[], None]) -> Outcome:
        """Queue the sequences of a job, and return its answer; see `Scheduler.submit`."""
        ...

    async def check_attention_room(self, served: ServedModel) -> None:
        """Refuse a sequence as `attend` would refuse it now."""
        ...

    async def attend(
        self,
        served: ServedModel,
        sequence: NDArray[np.generic],
        selection: AttentionSelection,
        *,
        deadline_s: float,
        on_queued: Callable[[], None],
    ) -> tuple[AttentionWeights, Interval]:
        """Return the attention weights of a sequence, and when it ran; see `AttentionWeightsQueue.submit`."""
        ...

    async def describe(self, served: ServedModel) -> pb.GetModelResponse:
        """Return where a model runs, and its difference from PyTorch; the other fields are empty."""
        ...

    async def batches(self, models: Sequence[ServedModel]) -> pb.ListBatchesResponse:
        """Return the latest batches of models, the newest last."""
        ...

    async def totals(self, models: Sequence[ServedModel]) -> list[Totals]:
        """Return the counts and the times of each of these models."""
        ...

    async def load(self, name: str) -> None:
        """Load a model; see `ModelRepository.load`."""
        ...

    async def load_on_demand(self, name: str) -> None:
        """Load a model that a request needs, or wait for its load; see `ModelRepository.load_on_demand`."""
        ...

    async def unload(self, name: str) -> None:
        """Unload a model; see `ModelRepository.unload`."""
        ...

    async def metrics(self, accept: str) -> Page:
        """Return the page of metrics; may be called in any event loop.

        `accept` is a header of the scrape.
        """
        ...
