"""What a request asks of a model, and the answer."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto.rules.errors import HeadwaiterError
from headwaiter_server.scheduling.fair_start import Priority
from headwaiter_server.settings.tenants import UNNAMED, Tenant


class Job(NamedTuple):
    """The sequences of a request, and how they run; travels from the protocol to the scheduler, between processes too.

    Attributes:
        values: token ids [n] or features [n, d_in] of each sequence.
        hidden: whether the answer includes hidden rows.
        deadline_s: deadline on `time.monotonic`, which all processes of a host share; infinity without a deadline.
        priority: see `Priority`.
        failures: errors of sequences that must not run, by index. With a mapping, even an empty one, the answer may be
            partial: the request does not fail when further sequences fail.
        device_failures: number of devices of other servers that died while they ran the request.
        calls: number of calls of a client that share the request, at most the number of sequences.
        trace: the ids of the request's span, for the spans of its batches; empty if the request is not sampled.
        tenant: the tenant whose token the request carries.
    """

    values: list[NDArray[np.generic]]
    hidden: bool = False
    deadline_s: float = float("inf")
    priority: Priority = Priority.INTERACTIVE
    failures: Mapping[int, HeadwaiterError] | None = None
    device_failures: int = 0
    calls: int = 1
    trace: bytes = b""
    tenant: Tenant = UNNAMED


class Interval(NamedTuple):
    """A part of the time, on one clock."""

    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        """Length of the interval."""
        return self.end_s - self.start_s


# A class with an instance per sequence, request or batch is not frozen, here and in other modules, because a frozen
# dataclass makes a call for each field that it sets.
@dataclass(eq=False, slots=True)
class BatchTimes:
    """The times of one batch, on the scheduler's clock.

    Attributes:
        packing: when the batch was packed.
        run: when the batch ran on the device.
        span: the ids of the batch's span; empty if the batch has none.
    """

    packing: Interval
    run: Interval
    span: bytes = b""


@dataclass(eq=False, slots=True)
class Outcome:
    """The answer to a request.

    Attributes:
        pooled: float32 [width] of each sequence that did not fail, not scaled to unit length, or the entries of its
            sparse vector; None for a model without pooling, or if all sequences failed.
        hidden: rows [n_i, width] of each sequence that did not fail; None unless requested.
        batches: the times of each batch that a sequence of the request ran in.
        failures: the errors of failed sequences, by index; empty unless the request accepts partial answers.
        logits: of each sequence that did not fail, see `GraphOutputs`; None for a model without a head, or if all
            failed.
    """

    pooled: list[NDArray[Any]] | None
    hidden: list[NDArray[np.generic]] | None
    batches: Collection[BatchTimes] = ()
    failures: Mapping[int, HeadwaiterError] = field(default_factory=dict)
    logits: list[NDArray[np.float32]] | None = None

    def completed_s(self, answered_s: float) -> float:
        """Return when the last result was complete, on the scheduler's clock; `answered_s` is when the answer came.

        A failure has no times of its own: it may be the last result, and comes with the answer.
        """
        ends_s = [batch.run.end_s for batch in self.batches]
        return max(ends_s) if ends_s and not self.failures else answered_s
