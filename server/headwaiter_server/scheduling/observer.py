"""The events of batches, for metrics and traces."""

from enum import StrEnum
from typing import Protocol

from headwaiter_server.scheduling.cost import Shape
from headwaiter_server.scheduling.job import Interval
from headwaiter_server.scheduling.planner import CloseReason
from headwaiter_server.scheduling.queued_request import Batch


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


class TraceBatch(Protocol):
    """Makes the span of a batch."""

    def __call__(
        self,
        sequences: Batch,
        device: int,
        predicted_s: float,
        whole: Interval,
        measured_s: float | None,
        error: str,
        /,
    ) -> bytes:
        """Make the span if a request of the batch is sampled, and return the ids of the span, else no bytes.

        Args:
            sequences: the sequences that ran.
            device: number of the GPU.
            predicted_s: predicted run time.
            whole: from when to when the batch was packed and ran.
            measured_s: measured run time; None for a batch that failed.
            error: the class of the error; empty for a batch that ran.
        """
        ...
