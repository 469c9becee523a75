"""Choose the replica for each call, and decide which replicas are probed; without I/O, clock and randomness.

A replica is *up*, *down* (it refused a call or a probe, or cannot be reached) or *aside* (calls get no answer from it
while other replicas answer, as in the outlier detection of Envoy and of gRPC's proposal A50). Replicas that are down or
aside get no calls while another replica is up. A probe, which is a health check, brings them back.
"""

import math
import threading
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from headwaiter_client.errors import HeadwaiterError, Unavailable

# This many calls in a row without an answer put a replica aside.
_MAX_SILENT_CALLS = 3
# Longest wait for the answer to the probe of a replica that is down: long enough to reconnect.
PROBE_TIMEOUT_S = 2.0
# A probe without an outcome for this long is lost, for example because its task was cancelled.
_PROBE_LOST_S = PROBE_TIMEOUT_S + 0.5
# Seconds until a failed probe is repeated; the pause doubles with each failure.
_FIRST_PROBE_PAUSE_S, _MAX_PROBE_PAUSE_S = 0.1, 1.0
# Seconds for which a replica is put aside at least; they double with each time, until the replica answers a call.
_FIRST_ASIDE_S, _MAX_ASIDE_S = 1.0, 30.0


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
    ASIDE = "aside"


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
    silent_calls: int = 0
    is_aside: bool = False
    times_aside: int = 0
    probe_ends_s: float = -math.inf  # Until then, an outcome of the latest probe may arrive.
    next_probe_s: float = -math.inf
    probe_pause_s: float = _FIRST_PROBE_PAUSE_S

    @property
    def due_s(self) -> float:
        """The time of the next probe: one probe at a time."""
        return max(self.next_probe_s, self.probe_ends_s)


class Replicas:
    """Replicas that take calls in turn. Threads may share an object.

    Args:
        count: number of replicas.
        first: index of the replica for the first call.
        probe_first: whether calls wait until a replica has been probed.
    """

    def __init__(self, count: int, first: int, *, probe_first: bool) -> None:
        self._replicas = [_Replica(up=None if probe_first else True) for _ in range(count)]
        self._next = first
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

    def next(self, tried: Collection[int] = ()) -> int:
        """Return the index of the replica for a call.

        That is the next one in turn that is up and that the call has not tried, else the next one that is up. If none
        is up, it is the next one in turn, which may be up again.
        """
        if len(self._replicas) == 1:
            return 0
        with self._lock:
            order = [(self._next + step) % len(self._replicas) for step in range(len(self._replicas))]
            up = [index for index in order if self._replicas[index].up] or order
            index = next((index for index in up if index not in tried), up[0])
            self._next = index + 1
            return index

    def answered(self, index: int, sent_s: float, now_s: float) -> Change | None:
        """Record that a replica has answered a call, with a result or with an error that is not `Unavailable`.

        The answer to a call that was sent before the replica went down says nothing about the replica now.
        """
        replica = self._replicas[index]
        with self._lock:
            if not replica.up and sent_s <= replica.refused_s:
                return None
            replica.times_aside = 0
            return self._set_up(replica, now_s)

    def refused(self, index: int, now_s: float) -> Change | None:
        """Record that a call to a replica ended with `Unavailable`; the replica is probed at once."""
        replica = self._replicas[index]
        with self._lock:
            if replica.up is False:
                return None
            self._set_down(replica, now_s)
            replica.refused_s = replica.next_probe_s = now_s
            return Change.DOWN

    def silent(self, index: int, now_s: float) -> Change | None:
        """Record that a call got no answer from a replica before its deadline."""
        replica = self._replicas[index]
        with self._lock:
            replica.silent_calls += 1
            return self._put_aside(replica, now_s) if replica.silent_calls >= _MAX_SILENT_CALLS else None

    def failed(
        self, index: int, error: HeadwaiterError, sent_s: float, now_s: float, *, is_silent: bool
    ) -> Change | None:
        """Record that a call failed: the replica refused it, gave no answer before its deadline, or answered."""
        if isinstance(error, Unavailable) and concerns_all_calls(error):
            return self.refused(index, now_s)
        return self.silent(index, now_s) if is_silent else self.answered(index, sent_s, now_s)

    def suspect(self, index: int, sent_s: float, now_s: float) -> bool:
        """Return whether to probe a replica because it has answered nothing since `sent_s`, while others answer."""
        replica = self._replicas[index]
        with self._lock:
            if not replica.up or replica.answered_s >= sent_s or not self._others_answer(replica):
                return False
            if replica.probe_ends_s > now_s:
                return False
            replica.probe_ends_s = now_s + _PROBE_LOST_S
            return True

    def is_aside(self, index: int) -> bool:
        """Return whether a replica is aside."""
        return self._replicas[index].is_aside

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
            if outcome is Probe.SILENT and replica.up:
                return self._put_aside(replica, now_s)
            was_up = replica.up
            self._set_down(replica, now_s)
            replica.next_probe_s = now_s + replica.probe_pause_s
            replica.probe_pause_s = min(2 * replica.probe_pause_s, _MAX_PROBE_PAUSE_S)
            return Change.DOWN if was_up else None

    def _set_up(self, replica: _Replica, now_s: float) -> Change | None:
        changed = replica.up is not True
        replica.up = True
        replica.is_aside = False
        replica.answered_s = now_s
        replica.silent_calls = 0
        replica.probe_pause_s = _FIRST_PROBE_PAUSE_S
        return Change.UP if changed else None

    def _set_down(self, replica: _Replica, now_s: float) -> None:
        replica.up = replica.is_aside = False
        if not self.any_up:
            # The replicas that were put aside may be better than none.
            for other in self._replicas:
                other.next_probe_s = min(other.next_probe_s, now_s + _FIRST_PROBE_PAUSE_S)

    def _put_aside(self, replica: _Replica, now_s: float) -> Change | None:
        """Put a replica aside, unless the others do not answer either: the last replica is never put aside."""
        if not replica.up or not self._others_answer(replica):
            return None
        replica.up, replica.is_aside = False, True
        replica.next_probe_s = now_s + min(_FIRST_ASIDE_S * 2.0**replica.times_aside, _MAX_ASIDE_S)
        replica.times_aside += 1
        return Change.ASIDE

    def _others_answer(self, replica: _Replica) -> bool:
        """Return whether a replica that is up has answered after this one did."""
        return any(other.up and other.answered_s > replica.answered_s for other in self._replicas)
