"""The timings of a reply add up to its total, and no stage is negative, whatever the batches of the request do."""

import time
from pathlib import Path
from unittest.mock import patch

import pytest

from headwaiter_client import Timings
from headwaiter_server.runtime.graph import EncoderGraph, GraphOutputs
from headwaiter_server.runtime.packing import PackedBatch
from tests.support.e2e.in_process_server import connect, metrics_url, serving
from tests.support.e2e.prometheus_metrics import read_metric

STAGES = ("tokenize", "queue", "assemble", "compute", "respond")
# A batch with a sequence of this id fails.
POISON = 7
RUN = EncoderGraph.run


def stages_of(timings: Timings) -> dict[str, float]:
    """Return the seconds of each stage, after checking that they add up."""
    stages = {stage: getattr(timings, f"{stage}_s") for stage in STAGES}
    assert sum(stages.values()) == pytest.approx(timings.total_s, rel=0, abs=1e-6)
    assert min(stages.values()) >= 0.0
    assert timings.total_s <= timings.round_trip_s
    return stages


def run_slowly(graph: EncoderGraph, batch: PackedBatch, *, hidden: bool) -> GraphOutputs:
    """Stand in for a slow device: other devices run meanwhile."""
    time.sleep(0.05)
    if POISON in batch.rows:
        raise RuntimeError("the model failed")
    return RUN(graph, batch, hidden=hidden)


async def test_no_stage_is_negative_when_the_batches_of_a_request_run_at_the_same_time(text_bundle: Path) -> None:
    async with serving(text_bundle, instances=2, token_budget=64) as server, connect(server) as client:
        with patch.object(EncoderGraph, "run", run_slowly):
            timings = (await client.encode_tokens([[1] * 64] * 6)).timings
        queue_s = await read_metric(metrics_url(server), "headwaiter_stage_duration_seconds_sum", stage="queue")
    assert timings.batches == 6
    stages = stages_of(timings)
    # Two sessions compute three batches each.
    assert stages["compute"] >= 3 * 0.05
    assert stages["compute"] <= timings.total_s
    assert queue_s == pytest.approx(stages["queue"])


async def test_the_time_of_a_failed_batch_counts_for_the_queue_and_not_for_the_reply(text_bundle: Path) -> None:
    async with serving(text_bundle, token_budget=64) as server, connect(server) as client:
        with patch.object(EncoderGraph, "run", run_slowly):
            encoding = await client.encode_tokens([[1] * 64, [POISON] * 64], partial=True)
        url = metrics_url(server)
        assert await read_metric(url, "headwaiter_batches_failed_total", reason="sequence") == 1
    assert list(encoding.failures) == [1]
    stages = stages_of(encoding.timings)
    assert stages["compute"] >= 0.05
    assert stages["queue"] >= 0.05
    assert stages["respond"] < stages["queue"]
