"""Callers of hidden rows do not slow down the batches of other callers."""

import asyncio
import time
from pathlib import Path
from unittest.mock import patch

from headwaiter_server.models import calibration
from headwaiter_server.runtime.graph import EncoderGraph, GraphOutputs
from headwaiter_server.runtime.packing import PackedBatch
from tests.support.e2e import in_process_server
from tests.support.e2e.in_process_server import connect, metrics_url, serving, wait_until
from tests.support.e2e.prometheus_metrics import read_metric

LENGTH = 32
ROW_S = 3e-4


async def test_rows_are_copied_for_the_sequences_that_need_them_if_copies_are_expensive(text_bundle: Path) -> None:
    copied_tokens: list[int] = []
    run = EncoderGraph.run

    def run_with_slow_copies(graph: EncoderGraph, batch: PackedBatch, *, hidden: bool) -> GraphOutputs:
        if hidden:
            copied_tokens.append(batch.tokens)
            # On the CPU, the server measures CPU time, which a sleep does not take.
            end_s = time.thread_time() + ROW_S * batch.tokens
            while time.thread_time() < end_s:
                pass
        return run(graph, batch, hidden=hidden)

    # The server measures the true cost of copies.
    with (
        patch.object(EncoderGraph, "run", run_with_slow_copies),
        patch.object(in_process_server, "known_cost", calibration.measure_cost),
    ):
        async with serving(text_bundle, token_budget=256) as server, connect(server) as client:
            copied_tokens.clear()
            # The first batch occupies the device until all other requests wait.
            first = asyncio.create_task(client.encode_tokens([[1] * 64] * 4, hidden=True, pooled=False))
            await wait_until(client, lambda: bool(copied_tokens))
            pooled = [asyncio.create_task(client.encode_tokens([[2] * LENGTH])) for _ in range(5)]
            with_rows = asyncio.create_task(client.encode_tokens([[3] * LENGTH], hidden=True, pooled=False))
            await asyncio.gather(first, with_rows, *pooled)
            row_s = await read_metric(metrics_url(server), "headwaiter_batch_cost_seconds", term="hidden_row")
            ratio = await read_metric(metrics_url(server), "headwaiter_cost_correction_ratio")
    assert sum(copied_tokens) == 4 * 64 + LENGTH
    assert row_s >= ROW_S / 2
    assert ratio > 0
