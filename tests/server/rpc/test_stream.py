"""A stream answers each request as soon as it is ready, and reads no faster than its caller takes the answers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import cast

import pytest

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_server.errors import InvalidInput, Overloaded, SequenceTooLong, Unavailable
from headwaiter_server.metrics import Recorder
from headwaiter_server.rpc.endpoint import Call, Context, clock
from headwaiter_server.rpc.stream import Bound, EncodeStream, MakeRoom, StreamLimits
from tests.server.rpc.stand_ins import sample

# More turns of the event loop than anything here takes.
TURNS = 50


class Talk:
    """One stream, with the caller, the channel and the encoder in a test's hand.

    Attributes:
        answers: what the caller got, in order.
        encoding: the requests that are being encoded, by id, each with what will become of it.
        answer_bytes: what each asks to have room for.
        lengths: how many numbers an answer has.
        room: while clear, nothing is taken from the server.
    """

    def __init__(self, requests: int = 100, bytes_: int = 10_000) -> None:
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
        self.stream = EncodeStream(self._messages(), cast(Context, self), call, self._encode, self.recorder, limits)
        self.served = asyncio.create_task(self.stream.serve())

    async def send(self, *ids: str, text: str = "") -> None:
        """Send requests, and return when the server has done with them what it can."""
        for one in ids:
            self._sent.put_nowait(pb.EncodeRequest(request_id=one, texts=pb.Texts(values=[text])).SerializeToString())
        await self.settle()

    async def send_raw(self, message: bytes) -> None:
        self._sent.put_nowait(message)
        await self.settle()

    async def finish(self) -> None:
        """Send no more, and wait for the end of the stream."""
        self._sent.put_nowait(None)
        await self.served

    async def answer(self, *ids: str) -> None:
        """Have the encoder answer requests."""
        for one in ids:
            self.encoding[one].set_result(None)
        await self.settle()

    async def settle(self) -> None:
        for _ in range(TURNS):
            await asyncio.sleep(0)

    @property
    def ids(self) -> list[str]:
        """The ids of the answers, in the order they came."""
        return [answer.request_id for answer in self.answers]

    async def write(self, message: bytes) -> None:
        """Takes an answer, as gRPC does."""
        await self.room.wait()
        self.answers.append(pb.EncodeStreamResponse.FromString(message))

    async def _messages(self) -> AsyncIterator[bytes]:
        while (message := await self._sent.get()) is not None:
            yield message

    async def _encode(self, request: pb.EncodeRequest, call: Call, make_room: MakeRoom) -> bytes:
        assert call.request_id == request.request_id
        await make_room(self.answer_bytes)
        self.encoding[request.request_id] = asyncio.get_running_loop().create_future()
        await self.encoding[request.request_id]
        del self.encoding[request.request_id]
        return pb.EncodeResponse(request_id=request.request_id, lengths=[1] * self.lengths).SerializeToString()


async def test_answers_come_as_they_are_ready_and_under_their_requests_ids() -> None:
    talk = Talk()
    await talk.send("a", "bb", "ccc")
    await talk.answer("ccc", "a", "bb")
    await talk.finish()
    assert talk.ids == ["ccc", "a", "bb"]
    assert [answer.response.request_id for answer in talk.answers] == talk.ids
    assert sample(talk.recorder, "requests_total", model="", method="EncodeStream", code="OK") == 3
    assert sample(talk.recorder, "inflight_requests") == 0


@pytest.mark.parametrize("size", [0, 127, 128, 16_383, 16_384, 3_000_000])
async def test_an_answer_of_any_size_arrives_whole(size: int) -> None:
    talk = Talk()
    talk.lengths = size
    await talk.send("a")
    await talk.answer("a")
    await talk.finish()
    assert [len(answer.response.lengths) for answer in talk.answers] == [size]


async def test_the_failure_of_one_request_is_told_under_its_id_and_the_stream_goes_on() -> None:
    talk = Talk()
    await talk.send("long", "full", "good")
    talk.encoding["long"].set_exception(SequenceTooLong("5 tokens", sequence=2, field="texts", limit=4, actual=5))
    talk.encoding["full"].set_exception(Overloaded("full", retry_after_s=0.25))
    await talk.answer("good")
    await talk.finish()
    long, full, good = talk.answers
    assert (long.request_id, long.error.code, long.error.reason) == ("long", 3, pb.SEQUENCE_TOO_LONG)
    assert long.error.message == "5 tokens"
    assert dict(long.error.metadata) == {"sequence": "2", "field": "texts", "limit": "4", "actual": "5"}
    assert (full.request_id, full.error.code, full.error.retry_after_s) == ("full", 8, 0.25)
    assert (good.request_id, good.HasField("response")) == ("good", True)
    assert sample(talk.recorder, "refused_total", reason="OVERLOADED") == 1


async def test_a_failure_that_nobody_foresaw_ends_its_request_alone() -> None:
    talk = Talk()
    await talk.send("a", "b")
    talk.encoding["a"].set_exception(ZeroDivisionError("secret"))
    await talk.answer("b")
    await talk.finish()
    assert talk.answers[0].error.message == "the server failed unexpectedly; its log says why"
    assert talk.answers[0].error.code == 13
    assert talk.answers[1].HasField("response")


@pytest.mark.parametrize(
    ("message", "phrase"),
    [
        (b"\xff", "the message is not a headwaiter.v1.EncodeRequest"),
        (b"", "a request of a stream needs one"),
        (pb.EncodeRequest(request_id="\n").SerializeToString(), "at most 256 printable characters"),
        (pb.EncodeRequest(request_id="first").SerializeToString(), "'first' is in flight on this stream already"),
    ],
)
async def test_a_request_whose_answer_nobody_could_tell_ends_the_stream_after_those_before_it(
    message: bytes, phrase: str
) -> None:
    talk = Talk()
    await talk.send("first")
    await talk.send_raw(message)
    await talk.send("after")
    assert list(talk.encoding) == ["first"]
    await talk.answer("first")
    with pytest.raises(InvalidInput, match=phrase):
        await talk.served
    assert talk.ids == ["first"]


async def test_an_id_is_free_again_once_it_is_answered() -> None:
    talk = Talk()
    for _ in range(2):
        await talk.send("a")
        await talk.answer("a")
    await talk.finish()
    assert talk.ids == ["a", "a"]


async def test_of_a_caller_who_takes_no_answers_no_more_is_read_than_has_a_place() -> None:
    talk = Talk(requests=3)
    talk.room.clear()
    await talk.send("a", "b", "c", "d", "e")
    assert list(talk.encoding) == ["a", "b", "c"]
    await talk.answer("b", "a", "c")
    assert not talk.encoding
    talk.room.set()
    await talk.settle()
    assert list(talk.encoding) == ["d", "e"]
    await talk.answer("d", "e")
    await talk.finish()
    assert talk.ids == ["b", "a", "c", "d", "e"]


async def test_large_requests_are_read_one_by_one() -> None:
    talk = Talk(bytes_=1000)
    await talk.send("a", "b", text="x" * 600)
    assert list(talk.encoding) == ["a"]
    await talk.answer("a")
    assert list(talk.encoding) == ["b"]
    await talk.answer("b")
    await talk.finish()


async def test_a_request_is_not_run_until_there_is_room_for_its_answer() -> None:
    talk = Talk(bytes_=1000)
    talk.answer_bytes = 600
    talk.room.clear()
    await talk.send("a", "b")
    assert list(talk.encoding) == ["a"]
    await talk.answer("a")
    assert not talk.encoding
    talk.room.set()
    await talk.settle()
    assert list(talk.encoding) == ["b"]
    await talk.answer("b")
    await talk.finish()


async def test_a_drain_answers_what_was_read_and_tells_the_caller_to_go_elsewhere() -> None:
    talk = Talk()
    await talk.send("a", "b")
    talk.stream.drain()
    await talk.settle()
    talk.stream.drain()
    await talk.send("c")
    assert list(talk.encoding) == ["a", "b"]
    await talk.answer("a", "b")
    with pytest.raises(Unavailable, match="send what has no answer to another replica"):
        await talk.served
    assert talk.ids == ["a", "b"]


async def test_when_the_caller_goes_away_its_requests_are_cancelled() -> None:
    talk = Talk()
    await talk.send("a", "b")
    talk.served.cancel()
    with suppress(asyncio.CancelledError):
        await talk.served
    await talk.settle()
    assert sample(talk.recorder, "requests_total", model="", method="EncodeStream", code="CANCELLED") == 2
    assert sample(talk.recorder, "inflight_requests") == 0
    assert talk.answers == []


async def test_what_is_too_large_for_a_bound_is_held_alone() -> None:
    bound = Bound(10)
    await bound.take(4)
    large = asyncio.create_task(bound.take(20))
    small = asyncio.create_task(bound.take(1))
    for _ in range(TURNS):
        await asyncio.sleep(0)
    assert not large.done()
    assert not small.done()
    bound.give(4)
    await large
    assert not small.done()
    bound.give(20)
    await small


async def test_who_no_longer_waits_for_a_bound_is_in_nobodys_way() -> None:
    bound = Bound(10)
    await bound.take(10)
    waiting = asyncio.create_task(bound.take(1))
    await asyncio.sleep(0)
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await waiting
    bound.give(10)
    await bound.take(10)
