"""A device with too little memory for full batches: callers see no error, and few batches fail."""

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from headwaiter_client import AsyncClient
from headwaiter_server.runtime.graph import EncoderGraph, GraphOutputs
from headwaiter_server.runtime.packing import PackedBatch
from tests.support.e2e.in_process_server import connect, metrics_url, serving
from tests.support.e2e.prometheus_metrics import read_metric
from tests.support.tiers import exhaustive

LENGTH = 16
BUDGET_TOKENS = 128
MOST_TOKENS = 80
# Tokens per second of the stand-in, which takes as long for the tokens of a failed batch.
TOKENS_PER_S = 64_000


@dataclass
class SmallMemory:
    """Counts batches on a device that has memory for 80 tokens."""

    failed_tokens: list[int] = field(default_factory=list)
    ran_tokens: list[int] = field(default_factory=list)


@contextmanager
def small_memory() -> Iterator[SmallMemory]:
    """Let every graph fail on batches of more than 80 tokens."""
    memory, run = SmallMemory(), EncoderGraph.run

    def run_if_it_fits(graph: EncoderGraph, batch: PackedBatch, *, hidden: bool) -> GraphOutputs:
        time.sleep(batch.tokens / TOKENS_PER_S)
        if batch.tokens > MOST_TOKENS:
            memory.failed_tokens.append(batch.tokens)
            raise RuntimeError("failed to allocate memory")
        memory.ran_tokens.append(batch.tokens)
        return run(graph, batch, hidden=hidden)

    with patch.object(EncoderGraph, "run", run_if_it_fits):
        yield memory


async def encode_for(client: AsyncClient, seconds: float, callers: int = 8) -> int:
    """Keep the queue full; return the number of tokens that were encoded."""
    end_s = time.monotonic() + seconds

    async def call() -> int:
        tokens = 0
        while time.monotonic() < end_s:
            pooled = (await client.encode_tokens([[1] * LENGTH] * 32)).pooled
            assert np.isfinite(pooled).all()
            tokens += LENGTH * 32
        return tokens

    return sum(await asyncio.gather(*(call() for _ in range(callers))))


@pytest.mark.parametrize("seconds", [1.5, *exhaustive(15.0)])
async def test_few_full_batches_fail_when_memory_is_too_small(
    text_bundle: Path, caplog: pytest.LogCaptureFixture, seconds: float
) -> None:
    caplog.set_level(logging.WARNING, "headwaiter_server.scheduling")
    async with serving(text_bundle, token_budget=BUDGET_TOKENS) as server, connect(server) as client:
        with small_memory() as memory:
            tokens = await encode_for(client, seconds)
        budget_tokens = await read_metric(metrics_url(server), "headwaiter_token_budget")
        assert (await client.model()).execution.token_budget == budget_tokens
        counted = await read_metric(metrics_url(server), "headwaiter_batches_failed_total", reason="size")
        ratio = await read_metric(metrics_url(server), "headwaiter_batch_limits_ratio")
    assert 1 <= len(memory.failed_tokens) <= 24 + len(memory.ran_tokens) / 400
    # The work of failed batches is a small part, and most batches are as large as the memory allows.
    assert sum(memory.failed_tokens) <= 0.2 * tokens
    assert np.median(memory.ran_tokens) >= BUDGET_TOKENS / 2
    assert counted == len(memory.failed_tokens)
    assert ratio == pytest.approx(budget_tokens / BUDGET_TOKENS)
    warnings = [record.getMessage() for record in caplog.records if "adaptive_limits" in record.name]
    assert len(warnings) == counted
    assert all("failed to allocate memory" in line for line in warnings)
    assert all("a batch of tiny-text version 1, " in line for line in warnings)


async def test_a_faulty_sequence_does_not_lower_the_limits(text_bundle: Path) -> None:
    run = EncoderGraph.run

    def fail_on_7(graph: EncoderGraph, batch: PackedBatch, *, hidden: bool) -> GraphOutputs:
        if 7 in batch.rows:
            raise RuntimeError("the model failed")
        return run(graph, batch, hidden=hidden)

    async with serving(text_bundle, token_budget=BUDGET_TOKENS) as server, connect(server) as client:
        with patch.object(EncoderGraph, "run", fail_on_7):
            encoding = await client.encode_tokens([[1] * LENGTH, [7] * LENGTH, [2] * LENGTH], partial=True)
        assert list(encoding.failures) == [1]
        assert await read_metric(metrics_url(server), "headwaiter_batches_failed_total", reason="sequence") == 1
        assert await read_metric(metrics_url(server), "headwaiter_token_budget") == BUDGET_TOKENS
