"""Make the same calls with `Client` and with `AsyncClient`, and record what a fake server receives."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from headwaiter_client import AsyncClient, AsyncFakeEncoder, Client, FakeEncoder, RetryPolicy, SequenceEncoding
from headwaiter_client.calls.steps import METHODS
from headwaiter_proto import encoder_pb2 as pb

# The client splits this list into three requests of at most 256 texts.
TEXTS = [f"text number {number}" for number in range(600)]


@dataclass(frozen=True)
class ClientRunner:
    """Makes each call with a new client of one class.

    The server is a `FakeEncoder`, or an object with the attribute `address`; then a failed call is not sent again,
    unless `connect`, the arguments of the client, has a retry policy.
    """

    client_class: type[Client] | type[AsyncClient]

    def call(
        self, server: Any, method: str, *arguments: Any, connect: dict[str, Any] | None = None, **options: Any
    ) -> Any:
        connect = {**self._target(server), **(connect or {})}

        async def call() -> Any:
            async with AsyncClient(**connect) as client:
                return await getattr(client, method)(*arguments, **options)

        if self.client_class is AsyncClient:
            return asyncio.run(call())
        with Client(**connect) as client:
            return getattr(client, method)(*arguments, **options)

    def stream(self, server: Any, sequences: Iterable[Any], **options: Any) -> list[SequenceEncoding]:
        """Return all results of a stream."""

        async def stream() -> list[SequenceEncoding]:
            async with AsyncClient(**self._target(server)) as client:
                return [one async for one in client.encode_stream(sequences, **options)]

        if self.client_class is AsyncClient:
            return asyncio.run(stream())
        with Client(**self._target(server)) as client:
            return list(client.encode_stream(sequences, **options))

    def _target(self, server: Any) -> dict[str, Any]:
        if isinstance(server, FakeEncoder):
            return {"transport": AsyncFakeEncoder(server) if self.client_class is AsyncClient else server}
        return {"address": server.address, "retry": RetryPolicy(max_attempts=1)}


class RecordingEncoder(FakeEncoder):
    """Records the method's name and the timeout of each call.

    Args:
        change_reply: called with each Encode request and its reply; may change the reply.
        **options: of `FakeEncoder`.
    """

    def __init__(
        self, change_reply: Callable[[pb.EncodeRequest, pb.EncodeResponse], None] | None = None, **options: Any
    ) -> None:
        super().__init__(**options)
        self.calls: list[tuple[str, float]] = []
        self._change_reply = change_reply

    def unary(self, method: str, request: bytes, timeout_s: float, *rest: Any) -> bytes:
        self.calls.append((method.rpartition("/")[2], timeout_s))
        reply = super().unary(method, request, timeout_s, *rest)
        if self._change_reply and method == METHODS["Encode"]:
            response = pb.EncodeResponse.FromString(reply)
            self._change_reply(pb.EncodeRequest.FromString(request), response)
            reply = response.SerializeToString()
        return reply


def texts_sent(fake: FakeEncoder) -> list[list[str]]:
    """Return the texts of each request to encode that a fake server has received."""
    return [[*request.texts.values] for request in fake.requests if isinstance(request, pb.EncodeRequest)]
