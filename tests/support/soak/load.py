"""A mixed load: callers of many kinds, each of whom knows the right answer to each of its calls."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from headwaiter_client import (
    AsyncClient,
    Cancelled,
    DeadlineExceeded,
    HeadwaiterError,
    InferenceFailed,
    Overloaded,
    RetryPolicy,
    SequenceTooLong,
    Unavailable,
)
from headwaiter_client.transport.status import error_from_rpc
from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import ERROR_BY_REASON
from tests.support.checkpoints import WORDS
from tests.support.soak.faulty_server import POISON

CALLERS = 24
_KNOWN_TEXTS = 200
_MAX_PAUSE_S = 0.02
# Far longer than a call waits. A later answer counts as lost.
_PATIENCE_S = 30.0
# A batch sums in another order than a sequence alone, so the last bits may differ.
_MAX_ABS = 1e-5
_TOO_LONG = "bread " * 40


class WrongAnswer(Exception):
    """An answer differs from the right one."""


class MixedLoad:
    """Sends calls until it is stopped, and checks the outcome of each.

    Attributes:
        outcomes: number of calls, by kind and code.
        lost: number of calls without an outcome after 30 s.
        wrong: descriptions of answers that differ from the right ones.
        broken: descriptions of errors that a call of this kind must never get.
    """

    def __init__(self, address: str, seed: int) -> None:
        self.outcomes: dict[str, Counter[str]] = {}
        self.lost = 0
        self.wrong: list[str] = []
        self.broken: list[str] = []
        self._random = Random(seed)
        self._client = AsyncClient(address, retry=RetryPolicy(max_attempts=1), timeout_s=_PATIENCE_S)
        self._channel = grpc.aio.insecure_channel(address)
        self._open_stream: Any = self._channel.stream_stream("/headwaiter.v1.Encoder/EncodeStream")
        self._texts = [" ".join(self._random.choices(WORDS[:-1], k=length % 28 + 1)) for length in range(_KNOWN_TEXTS)]
        self._pooled: NDArray[Any] = np.empty(0)
        self._hidden: list[NDArray[Any]] = []
        self._weights: list[NDArray[Any]] = []

    async def learn_answers(self) -> None:
        """Encode each text alone on the idle server, to have the right answers."""
        alone = [await self._client.encode([text], hidden=True) for text in self._texts]
        self._pooled = np.concatenate([each.pooled for each in alone if each.pooled is not None])
        self._hidden = [each.hidden[0] for each in alone if each.hidden is not None]
        self._weights = [(await self._client.attend(text)).weights for text in self._texts[:20]]

    async def run(self, seconds: float) -> None:
        """Send calls from all callers for some seconds, and wait for the last answers."""
        end_s = time.monotonic() + seconds

        async def call_until_end() -> None:
            while time.monotonic() < end_s:
                ((kind, allowed),) = self._random.choices(list(_KINDS.items()), _WEIGHTS)
                await self._observe(kind, allowed)
                await asyncio.sleep(self._random.uniform(0, _MAX_PAUSE_S))

        await asyncio.gather(*(call_until_end() for _ in range(CALLERS)))

    async def close(self) -> None:
        """Close the connection."""
        await self._client.close()
        await self._channel.close()

    async def _observe(self, kind: "_Kind", allowed: tuple[type[HeadwaiterError], ...]) -> None:
        """Make one call, and note its only outcome."""
        name, outcome, started_s = kind.__name__.replace("_", " ").strip(), "OK", time.monotonic()
        try:
            await kind(self)
        except WrongAnswer as error:
            self.wrong.append(f"{name}: {error}")
        except (HeadwaiterError, grpc.RpcError) as raised:
            failure = raised
            if isinstance(raised, grpc.RpcError):
                failure = error_from_rpc(raised, timeout_s=_PATIENCE_S, request_id=None)
            outcome = type(failure).__name__
            if time.monotonic() - started_s >= _PATIENCE_S:
                self.lost += 1
            elif not isinstance(failure, (*allowed, Unavailable, Overloaded)):
                self.broken.append(f"{name}: {failure!r}")
        self.outcomes.setdefault(name, Counter())[outcome] += 1

    def _pick(self, most: int) -> list[int]:
        return self._random.choices(range(_KNOWN_TEXTS), k=self._random.randint(1, most))

    def _chosen(self, picks: list[int]) -> list[str]:
        return [self._texts[pick] for pick in picks]

    async def _texts_of(self, most: int, **options: Any) -> None:
        picks = self._pick(most)
        reply = await self._client.encode(self._chosen(picks), **options)
        _check(reply.pooled, self._pooled[picks])

    async def interactive(self) -> None:
        await self._texts_of(4)

    async def bulk(self) -> None:
        await self._texts_of(100, priority="bulk")

    async def hurried(self) -> None:
        await self._texts_of(20, timeout_s=self._random.choice((0.001, 0.005, 0.02, 0.1)))

    async def hidden(self) -> None:
        picks = self._pick(30)
        reply = await self._client.encode(self._chosen(picks), hidden=True)
        _check(reply.pooled, self._pooled[picks])
        for rows, pick in zip(reply.hidden or (), picks, strict=True):
            _check(rows, self._hidden[pick])

    async def cancelled(self) -> None:
        """Cancel a call at a random moment; an answer that arrives before must be right."""
        call = asyncio.create_task(self._texts_of(30))
        await asyncio.wait({call}, timeout=self._random.uniform(0, 0.03))
        call.cancel()
        try:
            await call
        except asyncio.CancelledError:
            raise Cancelled("the caller cancelled") from None

    async def partial(self) -> None:
        """Mix texts that are too long into a partial request."""
        picks = self._pick(10)
        texts = self._chosen(picks)
        place = self._random.randint(0, len(texts))
        texts.insert(place, _TOO_LONG)
        reply = await self._client.encode(texts, partial=True)
        if {index: type(error) for index, error in reply.failures.items()} != {place: SequenceTooLong}:
            raise WrongAnswer(f"sequence {place} is too long, the failures are {reply.failures}")
        _check(np.delete(reply.pooled, place, axis=0), self._pooled[picks])

    async def poisoned(self) -> None:
        """Send a sequence that fails its batch; only this sequence may fail."""
        try:
            await self._client.encode_tokens([[1, 2, 3], POISON])
        except InferenceFailed as error:
            if error.sequence != 1:
                raise WrongAnswer(f"sequence 1 is poisoned, the error names {error.sequence}") from None
            raise
        raise WrongAnswer("the poisoned sequence has an answer")

    async def stream(self) -> None:
        """Send requests on one EncodeStream, and leave some streams early; each request has exactly one answer."""
        picks = self._pick(60)
        missing, stop_after = set(range(len(picks))), self._random.choice((min(5, len(picks)), len(picks)))
        stream: Any = self._open_stream(timeout=_PATIENCE_S)
        # Writing fails if the server has ended the stream; reading then raises the server's error.
        with suppress(asyncio.InvalidStateError):
            for index, pick in enumerate(picks):
                request = pb.EncodeRequest(request_id=str(index), texts=pb.Texts(values=[self._texts[pick]]))
                await stream.write(request.SerializeToString())
            await stream.done_writing()
        while len(picks) - len(missing) < stop_after:
            raw = await stream.read()
            if raw is grpc.aio.EOF:
                raise WrongAnswer(f"the stream has no answer for {missing}")
            reply = pb.EncodeStreamResponse.FromString(raw)
            if (index := int(reply.request_id)) not in missing:
                raise WrongAnswer(f"request {index} of a stream has two answers")
            missing.remove(index)
            if reply.HasField("error"):
                raise ERROR_BY_REASON[pb.ErrorReason.Name(reply.error.reason)](reply.error.message)
            _check(np.frombuffer(reply.response.pooled.data, "<f4"), self._pooled[picks[index]])
        stream.cancel()

    async def attention(self) -> None:
        pick = self._random.randrange(len(self._weights))
        _check((await self._client.attend(self._texts[pick])).weights, self._weights[pick])

    async def description(self) -> None:
        if (await self._client.model()).width != self._pooled.shape[1]:
            raise WrongAnswer("the width of the model")


def _check(values: NDArray[Any] | None, expected: NDArray[Any]) -> None:
    if values is None or values.shape != expected.shape:
        raise WrongAnswer(f"the shape is {None if values is None else values.shape}, not {expected.shape}")
    difference = float(np.abs(values - expected).max(initial=0))
    if not difference <= _MAX_ABS:
        raise WrongAnswer(f"the largest difference is {difference:g}")


_Kind = Callable[[MixedLoad], Awaitable[None]]
# What each kind of call may fail with, besides Unavailable and Overloaded.
_KINDS: dict[_Kind, tuple[type[HeadwaiterError], ...]] = {
    MixedLoad.interactive: (),
    MixedLoad.bulk: (),
    MixedLoad.hurried: (DeadlineExceeded,),
    MixedLoad.hidden: (),
    MixedLoad.cancelled: (Cancelled,),
    MixedLoad.partial: (),
    MixedLoad.poisoned: (InferenceFailed,),
    MixedLoad.stream: (),
    MixedLoad.attention: (),
    MixedLoad.description: (),
}
_WEIGHTS = (10, 3, 4, 4, 4, 3, 1, 3, 1, 1)
