"""A stream sends each answer as soon as it is ready, and reads only as fast as the caller accepts answers."""

import asyncio
from contextlib import suppress
from typing import Any, cast

import grpc
import pytest

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import HeadwaiterError, InvalidInput, Overloaded, SequenceTooLong, Unavailable
from headwaiter_server.metrics.recorder import Recorder
from headwaiter_server.requests.call import Call, clock
from headwaiter_server.requests.request_path import ReserveBytes
from headwaiter_server.rpc.endpoint import Context
from headwaiter_server.rpc.service import Encode, EncodeStream
from headwaiter_server.rpc.stream import Quota, RequestStream, StreamLimits
from tests.support.server.stand_ins import sample

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


async def test_each_answer_is_sent_when_it_is_ready_with_the_id_of_its_request() -> None:
    stream = StreamUnderTest()
    await stream.send("a", "bb", "ccc")
    await stream.answer("ccc", "a", "bb")
    await stream.finish()
    assert stream.ids == ["ccc", "a", "bb"]
    assert [answer.response.request_id for answer in stream.answers] == stream.ids
    assert sample(stream.recorder, "requests_total", model="", version="", method="EncodeStream", code="OK") == 3
    assert sample(stream.recorder, "inflight_requests") == 0


@pytest.mark.parametrize("size", [0, 127, 128, 16_383, 16_384, 3_000_000])
async def test_an_answer_of_any_size_arrives_whole(size: int) -> None:
    stream = StreamUnderTest()
    stream.lengths = size
    await stream.send("a")
    await stream.answer("a")
    await stream.finish()
    assert [len(answer.response.lengths) for answer in stream.answers] == [size]


async def test_an_error_of_one_request_is_sent_with_its_id_and_the_stream_continues() -> None:
    stream = StreamUnderTest()
    await stream.send("long", "full", "broken", "good")
    stream.encoding["long"].set_exception(SequenceTooLong("has 5 tokens", sequence=2, field="texts", limit=4, actual=5))
    stream.encoding["full"].set_exception(Overloaded("full", retry_after_s=0.25))
    stream.encoding["broken"].set_exception(ZeroDivisionError("secret"))
    await stream.answer("good")
    await stream.finish()
    long, full, broken, good = stream.answers
    assert (long.request_id, long.error.code, long.error.reason) == ("long", 3, pb.SEQUENCE_TOO_LONG)
    assert long.error.message == "sequence 2 has 5 tokens"
    assert dict(long.error.metadata) == {"sequence": "2", "field": "texts", "limit": "4", "actual": "5"}
    assert (full.request_id, full.error.code, full.error.retry_after_s) == ("full", 8, 0.25)
    assert (broken.request_id, broken.error.code, "secret" in broken.error.message) == ("broken", 13, False)
    assert (good.request_id, good.HasField("response")) == ("good", True)
    assert sample(stream.recorder, "refused_total", reason="OVERLOADED") == 1


@pytest.mark.parametrize(
    ("message", "field", "value"),
    [
        (b"\xff", None, "headwaiter.v1.EncodeRequest"),
        (b"", "request_id", "empty"),
        (pb.EncodeRequest(request_id="\n").SerializeToString(), "request_id", r"'\n'"),
        (pb.EncodeRequest(request_id="first").SerializeToString(), "request_id", "'first'"),
    ],
)
async def test_a_request_without_a_usable_id_ends_the_stream_after_the_earlier_answers(
    message: bytes, field: str | None, value: str
) -> None:
    stream = StreamUnderTest()
    await stream.send("first")
    await stream.send_raw(message)
    await stream.send("after")
    assert list(stream.encoding) == ["first"]
    await stream.answer("first")
    with pytest.raises(InvalidInput) as refusal:
        await stream.served
    assert refusal.value.field == field
    assert value in str(refusal.value)
    assert stream.ids == ["first"]


async def test_an_id_can_be_used_again_after_its_answer() -> None:
    stream = StreamUnderTest()
    for _ in range(2):
        await stream.send("a")
        await stream.answer("a")
    await stream.finish()
    assert stream.ids == ["a", "a"]


async def test_while_the_caller_accepts_no_answers_requests_are_read_up_to_the_limit() -> None:
    stream = StreamUnderTest(requests=3)
    stream.room.clear()
    await stream.send("a", "b", "c", "d", "e")
    assert list(stream.encoding) == ["a", "b", "c"]
    await stream.answer("b", "a", "c")
    assert not stream.encoding
    stream.room.set()
    await stream.settle()
    assert list(stream.encoding) == ["d", "e"]
    await stream.answer("d", "e")
    await stream.finish()
    assert stream.ids == ["b", "a", "c", "d", "e"]


async def test_large_requests_are_read_one_at_a_time() -> None:
    stream = StreamUnderTest(bytes_=1000)
    await stream.send("a", "b", text="x" * 600)
    assert list(stream.encoding) == ["a"]
    await stream.answer("a")
    assert list(stream.encoding) == ["b"]
    await stream.answer("b")
    await stream.finish()


async def test_a_request_runs_only_after_its_answer_bytes_are_reserved() -> None:
    stream = StreamUnderTest(bytes_=1000)
    stream.answer_bytes = 600
    stream.room.clear()
    await stream.send("a", "b")
    assert list(stream.encoding) == ["a"]
    await stream.answer("a")
    assert not stream.encoding
    stream.room.set()
    await stream.settle()
    assert list(stream.encoding) == ["b"]
    await stream.answer("b")
    await stream.finish()


async def test_a_drain_answers_the_requests_that_were_read_and_ends_as_unavailable() -> None:
    stream = StreamUnderTest()
    await stream.send("a", "b")
    stream.encode_stream.drain()
    await stream.settle()
    stream.encode_stream.drain()
    await stream.send("c")
    assert list(stream.encoding) == ["a", "b"]
    await stream.answer("a", "b")
    with pytest.raises(Unavailable, match="another replica"):
        await stream.served
    assert stream.ids == ["a", "b"]


async def test_answers_in_order_reserve_their_bytes_in_order() -> None:
    stream = StreamUnderTest(bytes_=1000, in_order=True)
    first_may_reserve = asyncio.Event()
    encode = stream._encode

    async def delay_first(request: pb.EncodeRequest, call: Call, reserve: ReserveBytes) -> bytes:
        async def reserve_late(size_bytes: int) -> None:
            if request.request_id == "a":
                await first_may_reserve.wait()
            await reserve(size_bytes)

        return await encode(request, call, reserve_late)

    cast(StreamOfKind, stream.encode_stream._protocol)._encode = delay_first
    stream.answer_bytes = 1000
    await stream.send("a", "b")
    assert not stream.encoding
    first_may_reserve.set()
    await stream.settle()
    await stream.answer("a")
    await stream.answer("b")
    await stream.finish()
    assert stream.ids == ["a", "b"]


async def test_an_error_that_ends_the_stream_cancels_the_other_requests() -> None:
    stream = StreamUnderTest(errors_end=True)
    await stream.send("a", "b")
    stream.encoding["b"].set_exception(Overloaded("full", retry_after_s=1.0))
    with pytest.raises(Overloaded, match="full"):
        await stream.served
    await stream.settle()
    assert stream.ids == []
    labels = {"model": "", "version": "", "method": "EncodeStream"}
    assert sample(stream.recorder, "requests_total", code="CANCELLED", **labels) == 1
    assert sample(stream.recorder, "requests_total", code="RESOURCE_EXHAUSTED", **labels) == 1
    assert sample(stream.recorder, "inflight_requests") == 0


async def test_an_amount_over_the_quota_is_held_alone() -> None:
    quota = Quota(10)
    await quota.acquire(4)
    large = asyncio.create_task(quota.acquire(20))
    small = asyncio.create_task(quota.acquire(1))
    for _ in range(LOOP_ITERATIONS):
        await asyncio.sleep(0)
    assert not large.done()
    assert not small.done()
    quota.release(4)
    await large
    assert not small.done()
    quota.release(20)
    await small


async def test_a_cancelled_wait_for_a_quota_does_not_block_others() -> None:
    quota = Quota(10)
    await quota.acquire(10)
    waiting = asyncio.create_task(quota.acquire(1))
    await asyncio.sleep(0)
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await waiting
    quota.release(10)
    await quota.acquire(10)
