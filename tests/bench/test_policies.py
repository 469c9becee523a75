"""The baselines batch as the documentation of the other servers says."""

import asyncio
from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray

from bench.servers.baseline import PolicyScheduler
from bench.servers.policies import read_policy
from headwaiter_server.metrics.recorder import Recorder
from headwaiter_server.runtime.graph import EncoderGraph
from headwaiter_server.scheduling.job import Job
from tests.support.server.stand_ins import Graph

# Lengths of the sequences of each request.
LENGTHS = ([1], [4, 2], [2], [3, 3, 1], [4])


@pytest.mark.parametrize(
    ("policy", "lengths", "waited_s", "batches"),
    [
        ("one", [9, 1, 9], 0.0, [[0]]),
        ("fifo:2:5", [9, 1, 9], 0.0, [[0, 1]]),
        ("fifo:4:5", [9, 1, 9], 0.004, []),
        ("fifo:4:5", [9, 1, 9], 0.005, [[0, 1, 2]]),
        ("equal:2:0", [9, 1, 9, 9], 0.0, [[0, 2]]),
        ("equal:4:5", [9, 1, 9, 9], 0.004, []),
        ("tokens:16", [4, 5, 5, 5, 1], 0.0, [[0, 1, 2]]),
        ("tokens:16", [4, 9, 1], 0.0, [[0]]),
        ("tokens:16", [17, 1], 0.0, [[0]]),
        ("sorted:2:8", [9, 1, 8], 0.0, [[0, 1]]),
        ("sorted:2:8", [9, 1, 8, 2, 7], 0.0, [[1, 3], [2, 0]]),
        ("sorted:2:2", [9, 1, 8, 2, 3, 4], 0.0, [[1, 3], [2, 0]]),
    ],
)
def test_a_policy_chooses_its_batches(
    policy: str, lengths: list[int], waited_s: float, batches: list[list[int]]
) -> None:
    assert read_policy(policy).choose(lengths, waited_s) == batches


@pytest.mark.parametrize("policy", ["one", "fifo:3:1", "equal:2:1", "tokens:8", "sorted:2:8"])
async def test_every_request_gets_its_own_answer_with_every_policy(policy: str) -> None:
    scheduler = PolicyScheduler(cast("EncoderGraph", Graph()), read_policy(policy), Recorder(), padded=True)
    requests: list[list[NDArray[np.generic]]] = [
        [np.full(length, number) for length in lengths] for number, lengths in enumerate(LENGTHS)
    ]
    outcomes = await asyncio.gather(*(scheduler.submit(None, Job(sequences)) for sequences in requests))
    scheduler.task.cancel()
    for number, (lengths, outcome) in enumerate(zip(LENGTHS, outcomes, strict=True)):
        assert outcome.pooled is not None
        assert [tuple(row) for row in outcome.pooled] == [(number * length, length) for length in lengths]
