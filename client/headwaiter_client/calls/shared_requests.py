"""Let short calls that are made at about the same time share a request; without I/O, clock and threads.

A call that may share waits among the calls with the same options. As long as few requests are in flight, the waiting
calls leave together. Each then gets its part of the reply, its own error, or the advice to send a request of its own.
`task_sharing` and `thread_sharing` wait for the calls and send the requests.
"""

import math
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from copy import copy
from typing import Any, NamedTuple, TypeAlias

from headwaiter_client.calls.list_call import ListCall
from headwaiter_client.calls.splitting import Chunk, measured_size
from headwaiter_client.calls.steps import Steps
from headwaiter_client.errors import renumbered
from headwaiter_proto.rules.errors import HeadwaiterError, InferenceFailed, InvalidInput, MessageTooLarge, Transient

# With fewer requests in flight to a server, a fast device idles, and a client opens too few connections to reach all
# front ends. With more requests, fewer calls share each.
REQUESTS_PER_SERVER = 4
# A request of more calls takes client and server hardly less time for each call.
_ENOUGH_CALLS = 32
# Calls of more sequences gain little.
_MOST_CALL_SEQUENCES = 8
# Calls that take the device for longer gain little, too; and because a reply leaves when all its sequences have run,
# the other calls would wait for them.
_MOST_CALL_S = 0.005
# Limits of a shared request, besides those of the server. In larger requests, client and server wait for each other:
# neither has anything to do while the other prepares a request or a reply.
_MOST_SEQUENCES, _MOST_BYTES, _MOST_DEVICE_S = 128, 1 << 18, 0.025
# The latest deadline of a request is at most this number of times as far away as the earliest.
_DEADLINE_RATIO = 1.5
# A call that waits needs the time of two requests: until one in flight ends, and then for its own. If its deadline
# leaves less, the call travels alone at once. Under overload, calls that wait longer would end without a reply. And
# beside clients that share nothing, a client that lets its calls wait would get less of the server's time.
_ROUND_TRIPS = 2.0
# Deadlines that differ by less are one.
_SAME_TIME_S = 0.02
# About the bytes of a token of a text.
_BYTES_PER_TOKEN = 4
# More tokens than any sequence has, where the limit of the model is not known.
_ANY_TOKENS = 1 << 30
# One sequence may be at fault, although the error names none. `DeviceFailed` is not here: if a call sent again the
# sequence that killed the device, it would kill more devices than in a request of its own.
_FAULTS_OF_ONE = (InvalidInput, MessageTooLarge, InferenceFailed)


class _Share(NamedTuple):
    """The results of one call: those of `sequences` sequences from `first` in the result of a shared request."""

    result: Any
    first: int
    sequences: int


_Outcome: TypeAlias = _Share | HeadwaiterError | None


class Caller:
    """A call that waits for its part of a shared request.

    Args:
        call: the call.
        chunk: all sequences of the call.
        now_s: the time.
        notify: called once the call has an outcome.

    Attributes:
        call: as given.
        chunk: as given.
        deadline_s: the time at which the call ends.
        request: the request that holds the sequences; None while the call waits for one.
        to_send: the request, if the thread of this call has to send it.
        notify: as given.
        is_settled: whether the call has an outcome.
        size: upper bound of the size of the sequences.
        device_s: predicted time of the sequences on a device, besides that of starting a batch; 0 if nothing is known.
    """

    def __init__(self, call: ListCall[Any], chunk: Chunk, now_s: float, notify: Callable[[], object]) -> None:
        self.call = call
        self.chunk = chunk
        self.deadline_s = call.begin(now_s)
        self.request: SharedRequest | None = None
        self.to_send: SharedRequest | None = None
        self.is_settled = False
        self.size = chunk.max_size or measured_size(chunk, _ANY_TOKENS)
        self.notify = notify
        self._outcome: _Outcome = None
        self.predict()

    @property
    def may_share(self) -> bool:
        """Whether the call may share a request: nobody has to wait for it, and its caller will not notice."""
        is_short = len(self.chunk.sequences) <= _MOST_CALL_SEQUENCES and self.device_s <= _MOST_CALL_S
        return is_short and not self.chunk.failures and not self.call.shares_nothing

    def predict(self) -> None:
        """Predict `device_s` from what is known of the model by now."""
        self.device_s = 0.0
        if description := self.call.known_description:
            cost, count = description.execution.cost, len(self.chunk.sequences)
            most_tokens = count * (description.max_text_tokens or description.max_tokens)
            tokens = min(self.size.tokens, self.size.size_bytes / _BYTES_PER_TOKEN, most_tokens)
            self.device_s = tokens * (cost.token_s + cost.padded_row_s + cost.cell_s * tokens / count)

    def settle(self, outcome: _Outcome) -> None:
        """Give the call its outcome, unless it has one: its share, an error, or None to send its request itself."""
        if not self.is_settled:
            self._outcome = outcome
            self.is_settled = True
            self.notify()

    @property
    def ends_with_request(self) -> bool:
        """Whether the request ends when the call does; the error of the request then says more than "no answer"."""
        return self.request is not None and self.request.deadline_s <= self.deadline_s + _SAME_TIME_S

    def expire(self) -> None:
        """End the call, because its time is up."""
        if not self.ends_with_request:
            self.settle(self.call.no_answer())

    def result(self) -> Any:
        """Return the result of the call; None if the call has to send its request itself.

        Raises:
            HeadwaiterError: the call failed.
        """
        if isinstance(self._outcome, HeadwaiterError):
            raise self._outcome
        return self._outcome and self.call.part(*self._outcome)


class SharedRequest:
    """A request that calls share.

    Args:
        callers: the calls.
        now_s: the time.

    Attributes:
        callers: the calls, until they are let go.
        start_s: the time at which the request leaves.
        is_answered: whether the server has answered the request.
        is_single: whether the request is that of one call, which sends the request itself, as if it could not share.
        deadline_s: the latest deadline of the calls.
    """

    def __init__(self, callers: list[Caller], now_s: float) -> None:
        self.callers = callers
        self.start_s = now_s
        self.is_answered = False
        self.is_single = len(callers) == 1
        self.deadline_s = max(caller.deadline_s for caller in callers)
        for caller in callers:
            caller.request = self

    @property
    def is_wanted(self) -> bool:
        """Whether a call waits for the reply."""
        return not all(caller.is_settled for caller in self.callers)

    def send(self) -> Steps[None]:
        """Send the request of several calls, and give each its outcome."""
        callers = self.callers
        call = copy(callers[0].call)
        call.represent(len(callers), self.deadline_s)
        if not call.known_description:
            try:
                yield from call.describe()
            except HeadwaiterError:
                return  # Each call finds out for itself what is wrong.
            for caller in callers:
                caller.predict()
            callers = [caller for caller in callers if caller.may_share]
            if not callers:
                return
        try:
            result = yield from call.send(_joined([caller.chunk for caller in callers]))
        except HeadwaiterError as error:
            _give_error(error, callers)
        else:
            self.is_answered = True
            _give_shares(result, callers)

    def let_go(self) -> None:
        """Let the calls without an outcome send their requests themselves, and forget all calls."""
        for caller in self.callers:
            caller.settle(None)
        self.callers = []  # The calls know their request: only the garbage collector could free this circle.


class SharedRequests:
    """The calls that wait for a shared request, and the requests in flight.

    Args:
        servers: number of servers that answer the requests.

    Attributes:
        round_trip_s: the time from sending the latest request that was answered to its reply.
    """

    def __init__(self, servers: int) -> None:
        self._servers = servers
        # The options and the number of the calls of each request in flight.
        self._in_flight: dict[SharedRequest, tuple[Hashable, int]] = {}
        self.round_trip_s = 0.0
        # The calls with the same options, by their options. The first have waited longest for a request.
        self._waiting: dict[Hashable, dict[Caller, None]] = {}

    def __bool__(self) -> bool:
        """Whether a call waits."""
        return any(self._waiting.values())

    def may_share(self, caller: Caller, now_s: float) -> bool:
        """Return whether a call may share a request, and its deadline leaves time to wait for one."""
        return caller.may_share and caller.deadline_s >= now_s + _ROUND_TRIPS * self.round_trip_s

    def send_alone(self, call: ListCall[Any], chunk: Chunk) -> Steps[Any]:
        """Send a call in a request of its own, and return its result."""
        start_s = time.monotonic()
        result = yield from call.send_all(chunk)
        self.round_trip_s = time.monotonic() - start_s
        return result

    def add(self, caller: Caller) -> None:
        """Add a call that waits."""
        self._waiting.setdefault(caller.call.sharing_key(caller.chunk), {})[caller] = None

    def discard(self, caller: Caller) -> None:
        """Remove a call that no longer waits."""
        for waiting in self._waiting.values():
            waiting.pop(caller, None)

    def next(self, now_s: float) -> SharedRequest | None:
        """Return the next request to send, and count it as in flight; None if all calls have to wait."""
        if len(self._in_flight) >= REQUESTS_PER_SERVER * self._servers:
            return None
        for key, waiting in [*self._waiting.items()]:
            callers = _together(waiting, now_s)
            if len(callers) == len(waiting) and not self._are_enough(len(callers), key):
                continue
            del self._waiting[key]
            for caller in callers:
                del waiting[caller]
            if waiting:
                self._waiting[key] = waiting
            if callers:
                request = SharedRequest(callers, now_s)
                self._in_flight[request] = (key, len(callers))
                return request
        return None

    def _are_enough(self, waiting: int, key: Hashable) -> bool:
        """Return whether waiting calls are nearly as many as the calls with the same options in flight to a server.

        Threads that a reply wakes make their next calls one after another. If the first of them left at once, requests
        would stay small: with 64 threads, 12 calls shared one instead of 27. Four calls at a time never wait.
        """
        in_flight = sum(calls for options, calls in self._in_flight.values() if options == key) / self._servers
        return waiting + REQUESTS_PER_SERVER - 1 >= min(in_flight, _ENOUGH_CALLS)

    def end(self, request: SharedRequest, now_s: float) -> None:
        """Count a request that is no longer in flight, and let go the calls that have no time left to wait."""
        del self._in_flight[request]
        if request.is_answered:  # A refusal comes sooner, and would say nothing.
            self.round_trip_s = now_s - request.start_s
        for waiting in self._waiting.values():
            for caller in [caller for caller in waiting if not self.may_share(caller, now_s)]:
                del waiting[caller]
                caller.settle(None)


def server_count(address: str | Sequence[str] | None) -> int:
    """Return the number of servers of a client, given its server or its replicas."""
    return 1 if address is None or isinstance(address, str) else len(address)


def _together(waiting: Iterable[Caller], now_s: float) -> list[Caller]:
    """Return those of the waiting calls that leave in one request: the first, and as many as fit beside it."""
    callers: list[Caller] = []
    sequences, size_bytes, device_s = 0, 0, 0.0
    nearest_s, farthest_s = math.inf, -math.inf
    for caller in waiting:
        left_s = caller.deadline_s - now_s
        nearest_s, farthest_s = min(nearest_s, left_s), max(farthest_s, left_s)
        sequences += len(caller.chunk.sequences)
        size_bytes += caller.size.size_bytes
        device_s += caller.device_s
        fits = sequences <= _MOST_SEQUENCES and size_bytes <= _MOST_BYTES and device_s <= _MOST_DEVICE_S
        if callers and not (fits and farthest_s <= _DEADLINE_RATIO * nearest_s):
            break
        callers.append(caller)
    return callers


def _joined(chunks: Sequence[Chunk]) -> Chunk:
    return Chunk(chunks[0].kind, 0, [sequence for chunk in chunks for sequence in chunk.sequences])


def _give_shares(result: Any, callers: Sequence[Caller]) -> None:
    """Give each call its share of a result, or the error of the first of its sequences that failed."""
    for caller, first in _with_first(callers):
        count = len(caller.chunk.sequences)
        outcome: _Outcome = _Share(result, first, count)
        failures = result.failures and [
            result.failures[index] for index in range(first, first + count) if index in result.failures
        ]
        if any(isinstance(failure, Transient | InferenceFailed) for failure in failures):
            outcome = None  # The call may succeed in a request of its own, as it would have without the others.
        elif failures and not caller.call.is_partial:
            outcome = renumbered(failures[0], -first)
        caller.settle(outcome)


def _give_error(error: HeadwaiterError, callers: Sequence[Caller]) -> None:
    """Give each call the error of a request, unless the sequence of another call is at fault or may be."""
    may_be_of_one = type(error) is HeadwaiterError or isinstance(error, _FAULTS_OF_ONE)
    for caller, first in _with_first(callers):
        if error.sequence is not None and first <= error.sequence < first + len(caller.chunk.sequences):
            own = _copied(error)
            own.sequence = error.sequence - first
            caller.settle(own)
        else:
            caller.settle(None if may_be_of_one else _copied(error))


def _with_first(callers: Sequence[Caller]) -> Iterator[tuple[Caller, int]]:
    """Yield each call and the index of its first sequence in the request."""
    first = 0
    for caller in callers:
        yield caller, first
        first += len(caller.chunk.sequences)


def _copied(error: HeadwaiterError) -> HeadwaiterError:
    """Return an error for one of several callers: raising an error changes the error."""
    own = copy(error)
    own.__cause__ = error.__cause__
    return own
