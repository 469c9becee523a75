"""Read the bodies of HTTP requests, with limits of their sizes and of the time."""

import asyncio

from starlette.requests import Request

from headwaiter_proto.rules.errors import DeadlineExceeded, InvalidInput, MessageTooLarge
from headwaiter_server.requests.call import clock
from headwaiter_server.requests.shares import Shares, share_exceeded

# The server reads this much more of a body that is too large, and then closes the connection.
_MAX_DISCARDED_BYTES = 32 << 20
# All connections together: reading faster would keep Python's global lock from gRPC.
_DISCARDED_BYTES_PER_S = 64 << 20


class SlowBody(DeadlineExceeded):
    """The caller did not send the body in time."""


class UnsupportedEncoding(InvalidInput):
    """The body is compressed."""


class Disconnected(Exception):
    """The caller has closed its connection."""


def host_of(request: Request) -> str:
    """Return the host of a caller. All connections of a host count as one, because each has only one request."""
    return request.client.host if request.client else ""


class Bodies:
    """Reads bodies.

    Args:
        max_bytes: the largest body.
        max_total_bytes: the most bytes of all bodies that are not complete, divided among the hosts of callers.
    """

    def __init__(self, max_bytes: int, max_total_bytes: int) -> None:
        self._max_bytes, self._max_total_bytes = max_bytes, max_total_bytes
        self._incomplete = Shares(max_total_bytes)
        self._discarding = asyncio.Lock()

    async def read(self, request: Request, deadline_s: float) -> bytes:
        """Return the body of a request; `deadline_s` is on `clock`.

        Raises:
            MessageTooLarge: the body is too large.
            Overloaded: the bodies of this host, or of all hosts, that are not complete are too large together.
            SlowBody: the deadline passed before the body was complete.
            Disconnected: the caller has closed its connection.
        """
        parts: list[bytes] = []
        host = host_of(request)
        kept_bytes = read_bytes = 0
        try:
            async with asyncio.timeout(deadline_s - clock()):
                more = True
                while more and read_bytes <= self._max_bytes + _MAX_DISCARDED_BYTES:
                    message = await request.receive()
                    if message["type"] == "http.disconnect":
                        raise Disconnected
                    part, more = message.get("body", b""), message.get("more_body", False)
                    read_bytes += len(part)
                    # The rest of a body that is too large is read and dropped. Many clients send their whole body
                    # before they read, and a connection that was closed earlier would hide the error from them.
                    if read_bytes <= self._max_bytes:
                        self._check_share(host, len(part))
                        parts.append(part)
                        kept_bytes += len(part)
                        self._incomplete.take(host, len(part))
                    else:
                        async with self._discarding:
                            await asyncio.sleep(len(part) / _DISCARDED_BYTES_PER_S)
        except TimeoutError:
            raise SlowBody("the body was not complete before the time limit: send the body faster") from None
        finally:
            self._incomplete.give_back(host, kept_bytes)
        if read_bytes > self._max_bytes:
            raise MessageTooLarge(
                f"the body has more than {self._max_bytes} bytes: split the request", limit=self._max_bytes
            )
        return b"".join(parts)

    def _check_share(self, host: str, part_bytes: int) -> None:
        if not self._incomplete.fits(host, part_bytes):
            raise share_exceeded(
                f"{self._incomplete.held(host)} bytes of bodies of this host are not complete; the server holds at "
                f"most {self._max_total_bytes} bytes of such bodies",
                self._max_total_bytes,
                "host",
            )
