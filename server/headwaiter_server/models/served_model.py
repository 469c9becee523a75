"""A version of a model that is ready to answer requests."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from headwaiter_server.model_metrics import ModelRecorder
from headwaiter_server.models.calibration_cache import CostFile
from headwaiter_server.models.tokenizer import BundleTokenizer
from headwaiter_server.runtime.model import ModelDescription
from headwaiter_server.scheduling.attention_weights import AttentionWeightsQueue
from headwaiter_server.scheduling.cost import Calibration
from headwaiter_server.scheduling.model_queue import ModelQueue

# The cost is stored after this number of batches.
_STORED_BATCHES = 200
_TYPICAL_TOKENS = 48


@dataclass(eq=False)
class ServedModel:
    """A version of a model that is ready, with the tokenizer and the queues that its requests go through.

    Attributes:
        name: name of the model on this server.
        version: version of the model, a whole number.
        cost_file: stores the cost that the batches teach; None to store nothing.
    """

    name: str
    version: str
    model: ModelDescription
    tokenizer: BundleTokenizer | None
    queue: ModelQueue
    attention_queue: AttentionWeightsQueue
    calibration: Calibration
    recorder: ModelRecorder
    cost_file: CostFile | None = None
    _stored_batches: int = 0
    _users: int = 0
    _unused: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._unused.set()

    @property
    def labels(self) -> tuple[str, str]:
        """The name and the version, for metrics."""
        return self.name, self.version

    def store_cost(self) -> None:
        """Store what was learnt about the cost of batches, if many batches have run since it was stored."""
        batches = self.queue.learnt.batch_count
        if self.cost_file is None or batches - self._stored_batches < _STORED_BATCHES:
            return
        self._stored_batches = batches
        learnt, limits = self.queue.learnt, self.queue.limits.largest
        rate = limits.tokens / learnt.cost.in_full_batches_s(limits.tokens, _TYPICAL_TOKENS, limits.tokens)
        self.cost_file.write(Calibration(learnt.cost, limits, rate, learnt.error_ratio))

    @contextmanager
    def used(self) -> Iterator[None]:
        """Keep the model loaded while the block runs."""
        self._users += 1
        self._unused.clear()
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                self._unused.set()

    async def wait_until_unused(self, timeout_s: float) -> None:
        """Wait until no request uses the model, or until the time-out."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._unused.wait(), timeout_s)
