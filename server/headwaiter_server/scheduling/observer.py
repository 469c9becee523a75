"""The events of batches, for metrics."""

from typing import Protocol

from headwaiter_server.scheduling.cost import Shape
from headwaiter_server.scheduling.planner import CloseReason


class Observer(Protocol):
    """Receives the events of batches."""

    def batch_closed(self, reason: CloseReason) -> None:
        """A batch was planned; the reason says why it is not larger."""

    def batch_ran(self, shape: Shape, predicted_s: float, actual_s: float) -> None:
        """A batch ran."""

    def expired(self, sequences: int) -> None:
        """Sequences were dropped because their deadline had passed or was too near."""
