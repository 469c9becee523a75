"""A fake server that holds requests back."""

import threading
from typing import Any

from headwaiter_client import FakeEncoder


class BlockingEncoder(FakeEncoder):
    """Holds requests back until `release` is set.

    Args:
        release_after: None holds back all requests except "r", until the test sets `release`. A number holds back only
            the request "r", and sets `release` after this number of other requests has been answered.

    Attributes:
        release: the event.
        held: ids of the requests that were held back.
    """

    def __init__(self, release_after: int | None = None) -> None:
        super().__init__()
        self.release = threading.Event()
        self.held: list[str] = []
        self._release_after = release_after

    def unary(self, method: str, request: bytes, timeout_s: float, request_id: str | None = None, *scope: Any) -> bytes:
        if request_id and (request_id == "r") is (self._release_after is not None):
            self.held.append(request_id)
            assert self.release.wait(30)
        reply = super().unary(method, request, timeout_s, request_id, *scope)
        if request_id and len(self.requests) == self._release_after:
            self.release.set()
        return reply
