"""A load of many concurrent requests, some of which the caller cancels; checks every answer."""

import asyncio
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwaiter_client import AsyncClient, Unavailable
from tests.support.checkpoints import VOCABULARY

REQUESTS = 2000
TASKS = 64
CONCURRENT_REQUESTS_PER_TASK = 8
CANCELLED = REQUESTS * 30 // 100
MAX_SEQUENCES_PER_REQUEST = 4
KNOWN_SEQUENCES = 100
# A batch sums in another order than a sequence alone, so the last bits may differ.
MAX_ABS = 1e-5


class CancellingLoad:
    """2,000 requests from 64 tasks, 30 % of which are cancelled at random moments.

    A moment is a number of answers, not a number of seconds, so that the cancellations spread over the whole run on a
    machine of any speed. When that number of answers has arrived, one of the requests in flight is cancelled.

    Attributes:
        answered: number of requests with a correct answer.
        cancelled: number of requests that the caller cancelled.
        refused: errors of the remaining requests.
    """

    def __init__(self, client: AsyncClient) -> None:
        self.answered = 0
        self.cancelled = 0
        self.refused: list[Unavailable] = []
        self._client = client
        self._random = Random(0)
        ids = np.random.default_rng(0)
        self._sequences = [ids.integers(0, len(VOCABULARY), length) for length in ids.integers(1, 65, KNOWN_SEQUENCES)]
        self._expected: NDArray[Any] = np.empty(0)
        last_moment = (REQUESTS - CANCELLED) * 9 // 10
        self._cancellations_at = Counter(self._random.randint(1, last_moment) for _ in range(CANCELLED))
        self._due_cancellations = 0
        # A dict keeps the order of arrival, so that the seeded choice among the requests is reproducible.
        self._in_flight: dict[asyncio.Task[Any], None] = {}

    async def encode_known_sequences(self) -> None:
        """Encode each known sequence alone, to have the expected answers."""
        alone = [(await self._client.encode_tokens([ids])).pooled for ids in self._sequences]
        self._expected = np.concatenate([vector for vector in alone if vector is not None])

    async def run(self, after_answer: Callable[[int], None]) -> None:
        """Send all requests; call `after_answer` with the number of answers after each answer.

        Raises:
            AssertionError: an answer is wrong.
        """

        async def send(requests: range) -> None:
            for start in range(0, len(requests), CONCURRENT_REQUESTS_PER_TASK):
                group = requests[start : start + CONCURRENT_REQUESTS_PER_TASK]
                await asyncio.gather(*(self._request(after_answer) for _ in group))

        await asyncio.gather(*(send(range(task, REQUESTS, TASKS)) for task in range(TASKS)))

    async def _request(self, after_answer: Callable[[int], None]) -> None:
        call = asyncio.current_task()
        assert call is not None
        self._in_flight[call] = None
        picks = self._random.choices(range(KNOWN_SEQUENCES), k=self._random.randint(1, MAX_SEQUENCES_PER_REQUEST))
        try:
            encoding = await self._client.encode_tokens([self._sequences[pick] for pick in picks], timeout_s=60)
        except asyncio.CancelledError:
            self.cancelled += 1
            return
        except Unavailable as error:
            self.refused.append(error)
            return
        finally:
            del self._in_flight[call]
        assert encoding.pooled is not None
        np.testing.assert_allclose(encoding.pooled, self._expected[picks], rtol=0, atol=MAX_ABS)
        self.answered += 1
        after_answer(self.answered)
        self._cancel_due_requests()

    def _cancel_due_requests(self) -> None:
        self._due_cancellations += self._cancellations_at[self.answered]
        running = [call for call in self._in_flight if not call.cancelling()]
        for call in self._random.sample(running, min(self._due_cancellations, len(running))):
            call.cancel()
            self._due_cancellations -= 1
