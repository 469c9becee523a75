"""The events of batches, for metrics."""

from typing import Protocol

from headwaiter_server.scheduling.cost import Shape
from headwaiter_server.scheduling.planner import CloseReason


class Observer(Protocol):
    """Records the events of batches."""

    def batch_closed(self, reason: CloseReason) -> None:
        """Record that a batch was planned, and why the batch is not larger."""

    def batch_ran(self, shape: Shape, predicted_s: float, actual_s: float) -> None:
        """Record that a batch ran, with its predicted and its actual seconds."""

    def expired(self, sequences: int) -> None:
        """Record that sequences were dropped because their deadline had passed or was too near."""
