"""What batches and waits are expected to take: what the cost model says, corrected by what they took of late."""

from collections import deque

from headwaiter_server.scheduling.cost import CostModel, Shape

# Batches that the pace is the median of: half of them outvote the other half.
_REMEMBERED_BATCHES = 31
# An answer that is handed out has yet to be written and sent.
_REPLY_S = 0.005
# Of the remembered batches, three are later than the margin allows for.
_PUNCTUAL = 28


class Expectations:
    """The measured cost of batches at the pace of the latest ones.

    Attributes:
        cost: the seconds that a batch takes.
        queue_cost: the seconds from batch to batch that work takes in a queue.
    """

    def __init__(self, cost: CostModel, budget_tokens: int) -> None:
        """Expect what was measured.

        Args:
            cost: the seconds of a batch, as measured at start.
            budget_tokens: of a full batch.
        """
        self._measured = self.cost = self.queue_cost = cost
        self._budget_tokens = budget_tokens
        self._pace, self._queue_pace, self._margin = Pace(), Pace(), Margin()

    @property
    def margin_s(self) -> float:
        """How much earlier than a deadline an answer has to be expected."""
        return self._margin.seconds

    def work_s(self, shape: Shape) -> float:
        """Return the seconds of a request's own work: how it is padded is up to who plans its batches."""
        return self.cost.seconds(*shape) - self.cost.padding_s(*shape)

    def ran(self, shape: Shape, compute_s: float) -> float:
        """Take note of what a batch took; return what it was expected to take."""
        expected_s = self.cost.seconds(*shape)
        self._learn_pace(self._measured.seconds(*shape), compute_s)
        return expected_s

    def left_queue(self, shape: Shape, device_s: float, *, last: bool) -> None:
        """Take note of how long a batch kept its device from the next.

        Args:
            shape: of the batch.
            device_s: from the end of the batch before, or from its start where the device had been idle.
            last: nothing else waited, so it is not small for want of skill.
        """
        measured = self._measured
        in_queue_s = (
            measured.seconds(*shape)
            if last
            else measured.in_full_batches_s(shape.tokens, shape.mean_tokens, self._budget_tokens)
        )
        self._queue_pace.learn(in_queue_s, device_s)
        self.queue_cost = measured.times(self._queue_pace.factor)

    def answered(self, late_s: float) -> None:
        """Take note of by how much the answers of a batch were later than planned, or less than nothing if earlier."""
        self._margin.learn(late_s)

    def doubt(self) -> None:
        """Believe a little less in the pace: nobody can be in time by it, and without batches it would stay so."""
        self._learn_pace(1.0, 1.0)

    def _learn_pace(self, measured_s: float, actual_s: float) -> None:
        self._pace.learn(measured_s, actual_s)
        self.cost = self._measured.times(self._pace.factor)


class Pace:
    """What batches take now, by what the cost model says: 1 on the machine it was measured on, 2 at half its speed.

    The median of the latest batches, and of as many on time before the first: a hiccup changes nothing, and a machine
    that has become slower is believed once most of these batches say so.
    """

    def __init__(self) -> None:
        """Start at 1."""
        self._ratios = deque([1.0] * _REMEMBERED_BATCHES, _REMEMBERED_BATCHES)
        self.factor = 1.0

    def learn(self, predicted_s: float, actual_s: float) -> None:
        """Take note of a batch: what the cost model said it takes, not multiplied by the factor, and what it took."""
        if predicted_s > 0 and actual_s > 0:
            self._ratios.append(actual_s / predicted_s)
            self.factor = sorted(self._ratios)[_REMEMBERED_BATCHES // 2]


class Margin:
    """How much earlier than a deadline an answer has to be expected, for nine of ten to be in time."""

    def __init__(self) -> None:
        """Start with the time to write and send an answer."""
        self._late_s = deque([0.0] * _REMEMBERED_BATCHES, _REMEMBERED_BATCHES)
        self.seconds = _REPLY_S

    def learn(self, late_s: float) -> None:
        """Take note of a batch: by how much it was later than planned, and less than nothing if it was earlier."""
        self._late_s.append(late_s)
        self.seconds = _REPLY_S + max(0.0, sorted(self._late_s)[_PUNCTUAL - 1])
