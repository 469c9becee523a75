"""Make the same calls with `Client` and with `AsyncClient`, over a fake transport without a network."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from headwaiter_client import AsyncClient, AsyncFakeEncoder, Client, FakeEncoder, SequenceEncoding
from headwaiter_client.calls.steps import METHODS
from headwaiter_proto import encoder_pb2 as pb

# The client splits this list into three requests of at most 256 texts.
TEXTS = [f"text number {number}" for number in range(600)]


@dataclass(frozen=True)
class ClientRunner:
    """Makes each call with a new client of one class, created with the arguments `connect`."""

    client_class: type[Client] | type[AsyncClient]

    def call(
        self, fake: FakeEncoder, method: str, *arguments: Any, connect: dict[str, Any] | None = None, **options: Any
    ) -> Any:
        async def call() -> Any:
            async with AsyncClient(transport=AsyncFakeEncoder(fake), **connect or {}) as client:
                return await getattr(client, method)(*arguments, **options)

        if self.client_class is AsyncClient:
            return asyncio.run(call())
        with Client(transport=fake, **connect or {}) as client:
            return getattr(client, method)(*arguments, **options)

    def stream(self, fake: FakeEncoder, sequences: Iterable[Any], **options: Any) -> list[SequenceEncoding]:
        """Return all results of a stream."""

        async def stream() -> list[SequenceEncoding]:
            async with AsyncClient(transport=AsyncFakeEncoder(fake)) as client:
                return [one async for one in client.encode_stream(sequences, **options)]

        if self.client_class is AsyncClient:
            return asyncio.run(stream())
        with Client(transport=fake) as client:
            return list(client.encode_stream(sequences, **options))


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
