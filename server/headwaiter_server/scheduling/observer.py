"""The events of batches, for metrics."""

from enum import StrEnum
from typing import Protocol

from headwaiter_server.scheduling.cost import Shape
from headwaiter_server.scheduling.planner import CloseReason


class FailureCause(StrEnum):
    """Why a batch failed."""

    SEQUENCE = "sequence"  # the model fails on a sequence
    SIZE = "size"  # its halves run, so the batch did not fit in memory
    UNKNOWN = "unknown"  # the sequences of the batch were withdrawn before they could run again


class Observer(Protocol):
    """Records the events of batches."""

    def batch_planned(self, reason: CloseReason) -> None:
        """Record that a batch was planned, and why the batch is not larger."""

    def batch_failed(self, cause: FailureCause) -> None:
        """Record that a batch failed, and why."""

    def batch_ran(self, shape: Shape, predicted_s: float, actual_s: float, packing_s: float) -> None:
        """Record that a batch ran, with its predicted and its actual seconds, and with the seconds of its packing."""

    def device_ran(self, device: int, seconds: float) -> None:
        """Record that a device ran a batch for this long, whether the batch failed or not; called in its thread."""

    def expired(self, sequences: int) -> None:
        """Record that sequences were dropped because their deadline had passed or was too near."""
