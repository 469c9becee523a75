"""Write the log records of the client, at most a few per second."""

import logging
import threading
from collections.abc import Sequence

from headwaiter_client.transport.replicas import Change

LOGGER = logging.getLogger("headwaiter_client")
# A program that configures no logging sees no records, as is usual for a library.
LOGGER.addHandler(logging.NullHandler())

_INTERVAL_S = 1.0


class TransportLog:
    """The log records of one client: at most one record per second of each kind, and of each replica.

    Args:
        addresses: the addresses of the replicas.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses
        self._written_s: dict[str, float] = {}
        self._omitted: dict[str, int] = {}
        self._lock = threading.Lock()

    def change(self, index: int, change: Change, reason: str, now_s: float) -> None:
        """Log that a replica went down or up."""
        level, state = (logging.WARNING, f"down: {reason}") if change is Change.DOWN else (logging.INFO, "up")
        self._write(f"{change.value} {index}", now_s, level, f"replica {self._addresses[index]} is {state}")

    def failover(self, method: str, index: int, error: Exception, now_s: float) -> None:
        """Log that a call moves from one replica to another."""
        message = f"{method} moves from {self._addresses[index]} to another replica: {error}"
        self._write("failover", now_s, logging.INFO, message)

    def retry(self, method: str, pause_s: float, attempts: int, error: Exception, now_s: float) -> None:
        """Log that a call will be sent again."""
        message = f"{method} is sent again in {pause_s:.2f} s, after attempt {attempts}: {error}"
        self._write("retry", now_s, logging.INFO, message)

    def _write(self, kind: str, now_s: float, level: int, message: str) -> None:
        if not LOGGER.isEnabledFor(level):
            return
        with self._lock:
            if now_s - self._written_s.get(kind, float("-inf")) < _INTERVAL_S:
                self._omitted[kind] = self._omitted.get(kind, 0) + 1
                return
            self._written_s[kind] = now_s
            omitted = self._omitted.pop(kind, 0)
        LOGGER.log(level, message + (f" (and {omitted} like it since the last record)" if omitted else ""))
