"""A version of a model with its queues, in the process that runs it."""

from dataclasses import dataclass, replace

from headwaiter_server.models.calibration import KnownCost
from headwaiter_server.models.served_model import ServedModel
from headwaiter_server.runtime.batch_timing import TYPICAL_TOKENS
from headwaiter_server.runtime.model import ModelDescription
from headwaiter_server.scheduling.attention_queue import AttentionWeightsQueue
from headwaiter_server.scheduling.cost import Calibration
from headwaiter_server.scheduling.model_queue import ModelQueue


@dataclass(eq=False)
class RunningModel(ServedModel):
    """A version of a model, with the queues that its requests go through.

    Attributes:
        calibration: the cost of batches when the model was loaded.
    """

    model: ModelDescription
    queue: ModelQueue
    attention_queue: AttentionWeightsQueue
    calibration: Calibration

    @property
    def known_cost(self) -> KnownCost:
        """The cost that the batches have taught, for a new version of the model."""
        learnt, limits = self.queue.learnt, self.queue.limits.largest
        full_s = learnt.cost.in_full_batches_s(limits.tokens, TYPICAL_TOKENS, limits.tokens, limits.sequences)
        rate = limits.tokens / full_s
        calibration = replace(
            self.calibration,
            cost=learnt.cost,
            limits=limits,
            service_tokens_per_s=rate,
            error_ratio=learnt.error_ratio or self.calibration.error_ratio,
        )
        return KnownCost(self.model.cost_conditions, calibration)
