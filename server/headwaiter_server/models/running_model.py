"""A version of a model with its queues, in the process that runs it."""

from dataclasses import dataclass

from headwaiter_server.models.calibration_cache import CostFile
from headwaiter_server.models.served_model import ServedModel
from headwaiter_server.runtime.model import ModelDescription
from headwaiter_server.scheduling.attention_weights import AttentionWeightsQueue
from headwaiter_server.scheduling.cost import Calibration
from headwaiter_server.scheduling.model_queue import ModelQueue

# The cost is stored after this number of batches.
_STORED_BATCHES = 200
_TYPICAL_TOKENS = 48


@dataclass(eq=False)
class RunningModel(ServedModel):
    """A version of a model, with the queues that its requests go through.

    Attributes:
        calibration: the cost of batches when the model was loaded.
        cost_file: stores the cost that the batches teach; None to store nothing.
    """

    model: ModelDescription
    queue: ModelQueue
    attention_queue: AttentionWeightsQueue
    calibration: Calibration
    cost_file: CostFile | None = None
    _stored_batches: int = 0

    def store_cost(self) -> None:
        """Store what was learnt about the cost of batches, if many batches have run since it was stored."""
        batches = self.queue.learnt.batch_count
        if self.cost_file is None or batches - self._stored_batches < _STORED_BATCHES:
            return
        self._stored_batches = batches
        learnt, limits = self.queue.learnt, self.queue.limits.largest
        rate = limits.tokens / learnt.cost.in_full_batches_s(limits.tokens, _TYPICAL_TOKENS, limits.tokens)
        self.cost_file.write(Calibration(learnt.cost, limits, rate, learnt.error_ratio))
