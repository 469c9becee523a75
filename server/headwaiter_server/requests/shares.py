"""Divide a limit among connections, so that no connection can hold all of it."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from headwaiter_proto.rules.errors import Overloaded

# The delay is fixed, because the server cannot predict when calls end and when callers read their replies.
RETRY_AFTER_S = 1.0


class Shares:
    """The part of a limit that each connection holds.

    A connection may take more only if it then holds at most as much as is still free. One connection alone can hold
    half of the limit, n connections can hold n / (n + 1) of it, and a part is always left for the next connection.
    While no connection holds anything, one amount of any size fits.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._total = 0
        self._held: dict[str, int] = {}

    def fits(self, connection: str, amount: int) -> bool:
        """Return whether a connection may take an amount."""
        free = self._limit - self._total - amount
        return not self._total or self.held(connection) + amount <= free

    def held(self, connection: str) -> int:
        """Return what a connection holds."""
        return self._held.get(connection, 0)

    def take(self, connection: str, amount: int) -> None:
        """Let a connection hold an amount."""
        self._total += amount
        self._held[connection] = self.held(connection) + amount

    def give_back(self, connection: str, amount: int) -> None:
        """Take an amount back from a connection."""
        self._total -= amount
        # An empty reply has no bytes, so a connection may give back nothing while it holds nothing.
        left = self.held(connection) - amount
        if left:
            self._held[connection] = left
        else:
            self._held.pop(connection, None)


def share_exceeded(problem: str, limit: int, holder: str = "connection") -> Overloaded:
    """Return the error of a connection, or of another holder, that would exceed its share of a limit.

    `problem` says what the holder has, and what the limit is.
    """
    return Overloaded(
        f"{problem}, and one {holder} may hold only as many as are still free: try again in {RETRY_AFTER_S:g} s",
        retry_after_s=RETRY_AFTER_S,
        limit=limit,
    )


class CallLimit:
    """Refuses a call if its connection would then have more calls in progress than are still free.

    Args:
        limit: the most calls of all connections.
        kind: what the calls are, for the error.
    """

    def __init__(self, limit: int, kind: str = "calls") -> None:
        self._limit, self._kind = limit, kind
        self._calls = Shares(limit)

    def hold(self, connection: str, held: ExitStack) -> None:
        """Admit a call of a connection until `held` is closed.

        Raises:
            Overloaded: the server, or the connection, has too many calls in progress.
        """
        if not self._calls.fits(connection, 1):
            raise share_exceeded(
                f"{self._calls.held(connection)} {self._kind} of this connection are in progress; the server handles "
                f"at most {self._limit} {self._kind}",
                self._limit,
            )
        self._calls.take(connection, 1)
        held.callback(self._calls.give_back, connection, 1)


class InputLimit:
    """Refuses a request while the texts, or the images, of the requests that are being read hold too many bytes."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._bytes = Shares(limit_bytes)

    @contextmanager
    def held(self, connection: str, size_bytes: int) -> Iterator[None]:
        """Hold the bytes of a request inside the block.

        Raises:
            Overloaded: requests of this connection, or of all connections, hold too many bytes.
        """
        if not self._bytes.fits(connection, size_bytes):
            raise share_exceeded(
                f"{self._bytes.held(connection)} bytes of requests of this connection are being read or wait for that; "
                f"the server takes at most {self._limit_bytes} bytes at a time",
                self._limit_bytes,
            )
        self._bytes.take(connection, size_bytes)
        try:
            yield
        finally:
            self._bytes.give_back(connection, size_bytes)


class ReplyLimit:
    """Refuses a request while the replies that callers have not received yet hold too many bytes."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._bytes = Shares(limit_bytes)

    def hold(self, connection: str, size_bytes: int, held: ExitStack, reserved_bytes: int = 0) -> None:
        """Reserve the bytes of a reply until `held` is closed, in place of `reserved_bytes` that the reply holds.

        Raises:
            Overloaded: replies to this connection, or to all connections, hold too many bytes.
        """
        self._bytes.give_back(connection, reserved_bytes)
        fits = self._bytes.fits(connection, size_bytes)
        self._bytes.take(connection, reserved_bytes)
        if not fits:
            raise Overloaded(
                f"the reply may take {size_bytes} bytes, {self._bytes.held(connection)} bytes of replies to this "
                f"connection are not received yet, and the server holds at most {self._limit_bytes} bytes of all "
                f"replies: read the replies, or try again in {RETRY_AFTER_S:g} s",
                retry_after_s=RETRY_AFTER_S,
                limit=self._limit_bytes,
            )
        self._bytes.take(connection, size_bytes - reserved_bytes)
        held.callback(self._bytes.give_back, connection, size_bytes - reserved_bytes)
