"""Divide a limit among holders, so that no holder can have all of it.

A holder is a tenant, or the connection of a caller without a named token.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from headwaiter_proto.rules.errors import Overloaded

# The delay is fixed, because the server cannot predict when calls end and when callers read their replies.
RETRY_AFTER_S = 1.0


class Shares:
    """The part of a limit that each holder has.

    A holder may take more only if it then has at most as much as is still free. One holder alone can have half of the
    limit, n holders can have n / (n + 1) of it, and a part is always left for the next holder. While no holder has
    anything, one amount of any size fits.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._total = 0
        self._held: dict[str, int] = {}

    def fits(self, holder: str, amount: int) -> bool:
        """Return whether a holder may take an amount."""
        free = self._limit - self._total - amount
        return not self._total or self.held(holder) + amount <= free

    def held(self, holder: str) -> int:
        """Return what a holder has."""
        return self._held.get(holder, 0)

    def take(self, holder: str, amount: int) -> None:
        """Give an amount to a holder."""
        self._total += amount
        self._held[holder] = self.held(holder) + amount

    def give_back(self, holder: str, amount: int) -> None:
        """Take an amount back from a holder."""
        self._total -= amount
        # An empty reply has no bytes, so a holder may give back nothing while it has nothing.
        left = self.held(holder) - amount
        if left:
            self._held[holder] = left
        else:
            self._held.pop(holder, None)


def share_exceeded(problem: str, limit: int, holder: str = "caller") -> Overloaded:
    """Return the error of a holder that would exceed its share of a limit.

    `problem` says what the holder has, and what the limit is.
    """
    return Overloaded(
        f"{problem}, and one {holder} may hold only as many as are still free: try again in {RETRY_AFTER_S:g} s",
        retry_after_s=RETRY_AFTER_S,
        limit=limit,
    )


class CallLimit:
    """Refuses a call if its holder would then have more calls in progress than are still free.

    Args:
        limit: the most calls of all holders.
        kind: what the calls are, for the error.
    """

    def __init__(self, limit: int, kind: str = "calls") -> None:
        self._limit, self._kind = limit, kind
        self._calls = Shares(limit)

    def hold(self, holder: str, held: ExitStack) -> None:
        """Admit a call of a holder until `held` is closed.

        Raises:
            Overloaded: the server, or the holder, has too many calls in progress.
        """
        if not self._calls.fits(holder, 1):
            raise share_exceeded(
                f"{self._calls.held(holder)} {self._kind} of this caller are in progress; the server handles "
                f"at most {self._limit} {self._kind}",
                self._limit,
            )
        self._calls.take(holder, 1)
        held.callback(self._calls.give_back, holder, 1)


class InputLimit:
    """Refuses a request while the texts, or the images, of the requests that are being read hold too many bytes."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._bytes = Shares(limit_bytes)

    @contextmanager
    def held(self, holder: str, size_bytes: int) -> Iterator[None]:
        """Hold the bytes of a request inside the block.

        Raises:
            Overloaded: requests of this caller, or of all callers, hold too many bytes.
        """
        if not self._bytes.fits(holder, size_bytes):
            raise share_exceeded(
                f"{self._bytes.held(holder)} bytes of requests of this caller are being read or wait for that; "
                f"the server takes at most {self._limit_bytes} bytes at a time",
                self._limit_bytes,
            )
        self._bytes.take(holder, size_bytes)
        try:
            yield
        finally:
            self._bytes.give_back(holder, size_bytes)


class ReplyLimit:
    """Refuses a request while the replies that callers have not received yet hold too many bytes."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._bytes = Shares(limit_bytes)

    def hold(self, holder: str, size_bytes: int, held: ExitStack, reserved_bytes: int = 0) -> None:
        """Reserve the bytes of a reply until `held` is closed, in place of `reserved_bytes` that the reply holds.

        Raises:
            Overloaded: replies to this caller, or to all callers, hold too many bytes.
        """
        self._bytes.give_back(holder, reserved_bytes)
        fits = self._bytes.fits(holder, size_bytes)
        self._bytes.take(holder, reserved_bytes)
        if not fits:
            raise Overloaded(
                f"the reply may take {size_bytes} bytes, {self._bytes.held(holder)} bytes of replies to this "
                f"caller are not received yet, and the server holds at most {self._limit_bytes} bytes of all "
                f"replies: read the replies, or try again in {RETRY_AFTER_S:g} s",
                retry_after_s=RETRY_AFTER_S,
                limit=self._limit_bytes,
            )
        self._bytes.take(holder, size_bytes - reserved_bytes)
        held.callback(self._bytes.give_back, holder, size_bytes - reserved_bytes)
