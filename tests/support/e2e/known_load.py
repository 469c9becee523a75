"""A load of many concurrent requests whose answers are known."""

import asyncio
from collections.abc import Callable
from random import Random

import numpy as np

from headwaiter_client import AsyncClient, Unavailable
from tests.support.checkpoints import VOCABULARY

REQUESTS = 2000
TASKS = 64
CONCURRENT_REQUESTS_PER_TASK = 8
MAX_SEQUENCES_PER_REQUEST = 4
KNOWN_SEQUENCES = 100
# A batch sums in another order than a sequence alone, so the last bits may differ.
MAX_ABS = 1e-5


class KnownLoad:
    """2,000 requests from 64 tasks.

    Attributes:
        answered: number of requests with a correct answer.
        refused: errors of the other requests.
    """

    def __init__(self, client: AsyncClient) -> None:
        self.answered = 0
        self.refused: list[Unavailable] = []
        self._client = client
        self._random = Random(0)
        ids = np.random.default_rng(0)
        self._sequences = [ids.integers(0, len(VOCABULARY), length) for length in ids.integers(1, 65, KNOWN_SEQUENCES)]

    async def run(self, after_answer: Callable[[int], None]) -> None:
        """Encode each known sequence alone, and send all requests; call `after_answer` with the number of answers.

        Raises:
            AssertionError: an answer is wrong.
        """
        expected = np.concatenate([(await self._client.encode_tokens([ids])).pooled for ids in self._sequences])

        async def request() -> None:
            picks = self._random.choices(range(KNOWN_SEQUENCES), k=self._random.randint(1, MAX_SEQUENCES_PER_REQUEST))
            try:
                encoding = await self._client.encode_tokens([self._sequences[pick] for pick in picks], timeout_s=60)
            except Unavailable as error:
                self.refused.append(error)
                return
            np.testing.assert_allclose(encoding.pooled, expected[picks], rtol=0, atol=MAX_ABS)
            self.answered += 1
            after_answer(self.answered)

        async def send(requests: range) -> None:
            for start in range(0, len(requests), CONCURRENT_REQUESTS_PER_TASK):
                await asyncio.gather(*(request() for _ in requests[start : start + CONCURRENT_REQUESTS_PER_TASK]))

        await asyncio.gather(*(send(range(task, REQUESTS, TASKS)) for task in range(TASKS)))
