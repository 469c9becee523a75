"""One stream of the server; the test plays the caller, the channel and the encoder."""

import asyncio
from typing import Any, cast

import grpc

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import HeadwaiterError
from headwaiter_server.metrics.recorder import Recorder
from headwaiter_server.requests.call import Call, clock
from headwaiter_server.requests.request_path import ReserveBytes
from headwaiter_server.rpc.endpoint import Context
from headwaiter_server.rpc.service import Encode, EncodeStream
from headwaiter_server.rpc.stream import RequestStream, StreamLimits

# Any step of these tests takes fewer iterations of the event loop.
LOOP_ITERATIONS = 50


class StreamOfKind(EncodeStream):
    """A stream of headwaiter.v1 that may answer in the order of the requests, or end with the first error."""

    def __init__(self, encode: Encode, *, in_order: bool, errors_end: bool) -> None:
        super().__init__(encode, max_sequences=4096)
        self.in_order, self._errors_end = in_order, errors_end

    def failure(self, request: pb.EncodeRequest, call: Call, error: HeadwaiterError) -> bytes:
        if self._errors_end:
            raise error
        return super().failure(request, call, error)


class StreamUnderTest:
    """One stream; the test plays the caller, the channel and the encoder.

    Attributes:
        answers: the messages that the caller received, in order.
        encoding: the requests that are being encoded, by id; the test resolves their futures.
        answer_bytes: bytes that each answer reserves.
        lengths: number of lengths in an answer.
        room: while this event is clear, the channel accepts no answer.
    """

    def __init__(
        self, requests: int = 100, bytes_: int = 10_000, *, in_order: bool = False, errors_end: bool = False
    ) -> None:
        self.recorder = Recorder()
        self.answers: list[pb.EncodeStreamResponse] = []
        self.encoding: dict[str, asyncio.Future[None]] = {}
        self.lengths = 1
        self.answer_bytes = 1
        self.room = asyncio.Event()
        self.room.set()
        self._sent: asyncio.Queue[bytes | None] = asyncio.Queue()
        call = Call("EncodeStream", clock(), float("inf"))
        limits = StreamLimits(requests, bytes_)
        protocol = StreamOfKind(self._encode, in_order=in_order, errors_end=errors_end)
        self.encode_stream = RequestStream(cast(Context, self), call, protocol, self.recorder, limits)
        self.served = asyncio.create_task(self.encode_stream.serve())

    async def send(self, *ids: str, text: str = "") -> None:
        """Send requests, and let the server go as far as it can."""
        for request_id in ids:
            self._sent.put_nowait(
                pb.EncodeRequest(request_id=request_id, texts=pb.Texts(values=[text])).SerializeToString()
            )
        await self.settle()

    async def send_raw(self, message: bytes) -> None:
        self._sent.put_nowait(message)
        await self.settle()

    async def finish(self) -> None:
        """End the caller's side, and wait for the end of the stream."""
        self._sent.put_nowait(None)
        await self.served

    async def answer(self, *ids: str) -> None:
        """Let the encoder answer requests."""
        for request_id in ids:
            self.encoding[request_id].set_result(None)
        await self.settle()

    async def settle(self) -> None:
        for _ in range(LOOP_ITERATIONS):
            await asyncio.sleep(0)

    @property
    def ids(self) -> list[str]:
        """The ids of the answers, in order."""
        return [answer.request_id for answer in self.answers]

    async def write(self, message: bytes) -> None:
        """Accept an answer, as gRPC does."""
        await self.room.wait()
        self.answers.append(pb.EncodeStreamResponse.FromString(message))

    async def read(self) -> Any:
        """Return the caller's next message, or EOF, as gRPC does."""
        message = await self._sent.get()
        return grpc.aio.EOF if message is None else message

    async def _encode(self, request: pb.EncodeRequest, call: Call, reserve: ReserveBytes) -> bytes:
        assert call.request_id == request.request_id
        await reserve(self.answer_bytes)
        self.encoding[request.request_id] = asyncio.get_running_loop().create_future()
        await self.encoding[request.request_id]
        del self.encoding[request.request_id]
        return pb.EncodeResponse(request_id=request.request_id, lengths=[1] * self.lengths).SerializeToString()
