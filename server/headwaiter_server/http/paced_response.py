"""Send a reply no faster than its caller reads."""

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

_PIECE_BYTES = 256 << 10


class PacedResponse(Response):
    """A reply that goes to the connection in pieces, each one when the caller has room for it.

    uvicorn would take the whole body at once, and the reply would seem to be read long before the caller reads it.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Return when the connection has sent the reply to the kernel."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        body = memoryview(self.body)
        for begin in range(0, len(body), _PIECE_BYTES):
            piece = bytes(body[begin : begin + _PIECE_BYTES])
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
