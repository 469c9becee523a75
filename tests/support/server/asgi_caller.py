"""Calls an ASGI application in the test's own event loop."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp


@dataclass
class Reply:
    """The reply of an application."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def send_request(
    application: ASGIApp,
    method: str,
    path: str,
    *parts: bytes,
    headers: Mapping[str, str] | None = None,
    complete: bool = True,
    disconnect: asyncio.Event | None = None,
    host: str = "192.0.2.1",
) -> Reply:
    """Send a request whose body has these parts; the caller closes its connection when `disconnect` is set."""
    pairs = [
        (name.lower().encode(), value.encode()) for name, value in {"Host": "localhost", **(headers or {})}.items()
    ]
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": pairs,
        "client": (host, 1),
        "root_path": "",
        "scheme": "http",
        "server": ("test", 80),
    }
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts or [b""]]
    messages[-1]["more_body"] = not complete
    reply, waiting = Reply(), iter(messages)

    async def receive() -> Any:
        for message in waiting:
            return message
        await (disconnect or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            reply.status = message["status"]
            reply.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            reply.body += message.get("body", b"")

    await application(scope, receive, send)
    return reply


def as_json(fields: Mapping[str, Any] | Sequence[Any]) -> bytes:
    """Return a JSON body."""
    return json.dumps(fields).encode()
