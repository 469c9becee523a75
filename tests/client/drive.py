"""Makes the same calls with either client, over a transport of the test's own, without a network."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from headwaiter_client import AsyncClient, AsyncFakeEncoder, Client, FakeEncoder, SequenceEncoding
from headwaiter_client.calls.steps import METHODS
from headwaiter_client.transport.grpc_transport import Flight
from headwaiter_proto import encoder_pb2 as pb

# More than one request holds.
TEXTS = [f"text number {number}" for number in range(600)]


@dataclass(frozen=True)
class Drive:
    """Makes calls with one kind of client, a new one each time, made with the arguments `connect`."""

    kind: type[Client] | type[AsyncClient]

    def call(
        self, fake: FakeEncoder, method: str, *arguments: Any, connect: dict[str, Any] | None = None, **options: Any
    ) -> Any:
        async def call() -> Any:
            async with AsyncClient(transport=AsyncFakeEncoder(fake), **connect or {}) as client:
                return await getattr(client, method)(*arguments, **options)

        if self.kind is AsyncClient:
            return asyncio.run(call())
        with Client(transport=fake, **connect or {}) as client:
            return getattr(client, method)(*arguments, **options)

    def stream(self, fake: FakeEncoder, sequences: Iterable[Any], **options: Any) -> list[SequenceEncoding]:
        """Runs a stream to its end."""

        async def stream() -> list[SequenceEncoding]:
            async with AsyncClient(transport=AsyncFakeEncoder(fake)) as client:
                return [one async for one in client.encode_stream(sequences, **options)]

        if self.kind is AsyncClient:
            return asyncio.run(stream())
        with Client(transport=fake) as client:
            return list(client.encode_stream(sequences, **options))


class Recorder(FakeEncoder):
    """Notes each call: its method's name and its timeout; `then` sees each request and reply, and may change it."""

    def __init__(
        self, then: Callable[[pb.EncodeRequest, pb.EncodeResponse], None] | None = None, **options: Any
    ) -> None:
        super().__init__(**options)
        self.calls: list[tuple[str, float]] = []
        self._then = then

    def unary(
        self, method: str, request: bytes, timeout_s: float, request_id: str | None = None, flight: Flight | None = None
    ) -> bytes:
        self.calls.append((method.rpartition("/")[2], timeout_s))
        reply = super().unary(method, request, timeout_s, request_id, flight)
        if self._then and method == METHODS["Encode"]:
            response = pb.EncodeResponse.FromString(reply)
            self._then(pb.EncodeRequest.FromString(request), response)
            reply = response.SerializeToString()
        return reply
