"""Choose the replica for each call, and decide which replicas are probed; without I/O, clock and randomness.

A replica is *up* or *down*: it refused a call or a probe, cannot be reached, or answers neither calls nor a probe.
Replicas that are down get no calls while another replica is up. A probe, which is a health check, brings them back.
"""

import math
import threading
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from headwaiter_proto.rules.errors import HeadwaiterError, InvalidInput, Unavailable

# A call that failed counts as one more in flight for this long, so that a replica that refuses calls at once gets few.
_PENALTY_S = 1.0
# Longest wait for the answer to the probe of a replica that is down: long enough to reconnect.
PROBE_TIMEOUT_S = 2.0
# A probe without an outcome for this long is lost, for example because its task was cancelled.
_PROBE_LOST_S = PROBE_TIMEOUT_S + 0.5
# Seconds until a failed probe is repeated; the pause doubles with each failure.
_FIRST_PROBE_PAUSE_S, _MAX_PROBE_PAUSE_S = 0.1, 1.0


def concerns_all_calls(error: HeadwaiterError) -> bool:
    """Return whether an error is about the whole server.

    An error about a field of the request, for example the name of a model that is being loaded, concerns one call: the
    server has answered it, and answers other calls.
    """
    return error.field is None


class Change(Enum):
    """What has become of a replica."""

    UP = "up"
    DOWN = "down"


class Probe(Enum):
    """The outcome of a probe."""

    SERVING = "serving"
    REFUSED = "refused"
    SILENT = "silent"


@dataclass
class _Replica:
    up: bool | None  # None: not checked yet.
    answered_s: float = -math.inf
    refused_s: float = -math.inf
    is_silent: bool = False  # It is down because a probe got no answer.
    in_flight: int = 0
    probe_ends_s: float = -math.inf  # Until then, an outcome of the latest probe may arrive.
    next_probe_s: float = -math.inf
    probe_pause_s: float = _FIRST_PROBE_PAUSE_S

    @property
    def due_s(self) -> float:
        """The time of the next probe: one probe at a time."""
        return max(self.next_probe_s, self.probe_ends_s)


class Replicas:
    """Replicas that share the calls of a client. Threads may share an object.

    Args:
        count: number of replicas.
        first: index of the replica for the first call.
        probe_first: whether calls wait until a replica has been probed.
    """

    def __init__(self, count: int, first: int, *, probe_first: bool) -> None:
        self._replicas = [_Replica(up=None if probe_first else True) for _ in range(count)]
        self._next = first
        # The ends of the penalties, and the replicas, in order.
        self._penalties: deque[tuple[float, int]] = deque()
        self._lock = threading.Lock()

    @property
    def ready(self) -> bool:
        """Whether calls may start: one replica is up, or all have been checked."""
        return self.any_up or all(replica.up is not None for replica in self._replicas)

    @property
    def all_up(self) -> bool:
        """Whether all replicas are up, so that calls may start and no probe is due."""
        return all([replica.up for replica in self._replicas])  # noqa: C419 Every call asks, and a list is faster.

    @property
    def any_up(self) -> bool:
        """Whether a replica is up."""
        return any(replica.up for replica in self._replicas)

    @property
    def any_answered(self) -> bool:
        """Whether a replica has ever answered a call or a probe."""
        return any(replica.answered_s > -math.inf for replica in self._replicas)

    @property
    def next_probe_s(self) -> float:
        """The time at which the next probe is due, if the probes on their way are lost; infinite if all are up."""
        return min((replica.due_s for replica in self._replicas if not replica.up), default=math.inf)

    def has_others(self, tried: Collection[int]) -> bool:
        """Return whether a replica is up that a call has not tried."""
        return any(replica.up and index not in tried for index, replica in enumerate(self._replicas))

    def next(self, now_s: float, tried: Collection[int] = ()) -> int:
        """Return the index of the replica for a call; the caller reports the end of the call to `ended`.

        That is the one with the fewest calls in flight of those that are up and that the call has not tried, else of
        those that are up. If none is up, it is one of all, which may be up again. Equal ones take turns.
        """
        if len(self._replicas) == 1:
            return 0
        with self._lock:
            while self._penalties and self._penalties[0][0] <= now_s:
                self._replicas[self._penalties.popleft()[1]].in_flight -= 1
            order = [(self._next + step) % len(self._replicas) for step in range(len(self._replicas))]
            up = [index for index in order if self._replicas[index].up] or order
            untried = [index for index in up if index not in tried] or up
            index = min(untried, key=lambda index: self._replicas[index].in_flight)
            self._replicas[index].in_flight += 1
            self._next = index + 1
            return index

    def ended(self, index: int) -> None:
        """Record that a call to a replica is no longer in flight."""
        if len(self._replicas) > 1:
            with self._lock:
                self._replicas[index].in_flight -= 1

    def answered(self, index: int, sent_s: float, now_s: float) -> Change | None:
        """Record that a replica has answered a call, with a result or with an error that is not `Unavailable`.

        The answer to a call that was sent before the replica went down says nothing about the replica now.
        """
        replica = self._replicas[index]
        with self._lock:
            if not replica.up and sent_s <= replica.refused_s:
                return None
            return self._set_up(replica, now_s)

    def refused(self, index: int, now_s: float) -> Change | None:
        """Record that a call to a replica ended with `Unavailable`; the replica is probed at once."""
        replica = self._replicas[index]
        with self._lock:
            if replica.up is False:
                return None
            replica.up = replica.is_silent = False
            replica.refused_s = replica.next_probe_s = now_s
            return Change.DOWN

    def failed(
        self, index: int, error: HeadwaiterError, sent_s: float, now_s: float, *, is_silent: bool
    ) -> Change | None:
        """Record that a call failed: the replica refused it, gave no answer before its deadline, or answered."""
        if isinstance(error, Unavailable) and concerns_all_calls(error):
            return self.refused(index, now_s)
        if len(self._replicas) > 1 and not isinstance(error, InvalidInput):
            with self._lock:
                self._replicas[index].in_flight += 1
                self._penalties.append((now_s + _PENALTY_S, index))
        return None if is_silent else self.answered(index, sent_s, now_s)

    def suspect(self, index: int, sent_s: float, now_s: float) -> bool:
        """Return whether to probe a replica because it has answered nothing since `sent_s`, and another one is up."""
        replica = self._replicas[index]
        with self._lock:
            if not replica.up or replica.answered_s >= sent_s or not self.has_others({index}):
                return False
            if replica.probe_ends_s > now_s:
                return False
            replica.probe_ends_s = now_s + _PROBE_LOST_S
            return True

    def is_silent(self, index: int) -> bool:
        """Return whether a replica is down because it answered neither calls nor a probe."""
        return self._replicas[index].is_silent

    def due(self, now_s: float) -> list[int]:
        """Return the replicas to probe now. The caller reports the outcome of each probe to `probed`."""
        with self._lock:
            due = [index for index, replica in enumerate(self._replicas) if not replica.up and replica.due_s <= now_s]
            for index in due:
                self._replicas[index].probe_ends_s = now_s + _PROBE_LOST_S
            return due

    def probed(self, index: int, outcome: Probe, now_s: float) -> Change | None:
        """Record the outcome of a probe."""
        replica = self._replicas[index]
        with self._lock:
            replica.probe_ends_s = -math.inf
            if outcome is Probe.SERVING:
                # A probe is no answer to a call: `answered_s` of a replica that is up stays as it is.
                return None if replica.up else self._set_up(replica, now_s)
            was_up = replica.up
            if was_up and outcome is Probe.SILENT and not self.has_others({index}):
                return None  # The last replica that is up may be slow, and no other one is better.
            replica.up, replica.is_silent = False, outcome is Probe.SILENT
            replica.next_probe_s = now_s + replica.probe_pause_s
            replica.probe_pause_s = min(2 * replica.probe_pause_s, _MAX_PROBE_PAUSE_S)
            return Change.DOWN if was_up else None

    def _set_up(self, replica: _Replica, now_s: float) -> Change | None:
        changed = replica.up is not True
        replica.up = True
        replica.is_silent = False
        replica.answered_s = now_s
        replica.probe_pause_s = _FIRST_PROBE_PAUSE_S
        return Change.UP if changed else None
