"""Hostile HTTP callers send what their names say."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from bench.loads.hostile_http import BODIES, KINDS
from testbed.server_process import RunningServer, running_server
from tests.support.e2e.prometheus_metrics import metric_value


@pytest.fixture(scope="module")
def server(text_bundle: Path, starts_processes: None) -> Iterator[RunningServer]:
    with running_server(text_bundle, ["--provider", "cpu", "--http-api", "on"]) as server:
        yield server


def test_hostile_bodies_hold_the_values_that_their_names_say() -> None:
    values = {}
    for kind, (body, _) in BODIES.items():
        with suppress(json.JSONDecodeError, RecursionError):
            values[kind.partition(";")[0]] = json.loads(body)["input"]
    assert values.pop("500,001 token ids") == [1] * 500_001
    assert values.pop("300,001 empty lists") == [[]] * 300_001
    assert len(values.pop("bodies of 10 MB")) == 10_000_000
    assert list(values.values()) == ["rain on bread"]


@pytest.mark.exhaustive
def test_hostile_callers_send_until_they_are_stopped(server: RunningServer) -> None:
    for kind in KINDS:
        program = [sys.executable, "-m", "bench.loads.hostile_http", server.metrics_url, kind]
        with subprocess.Popen(program, stdout=subprocess.PIPE) as callers:
            try:
                assert callers.stdout
                assert callers.stdout.readline() == b"connected\n"
                if kind in BODIES:
                    _wait_for_answers(server, 12)
            finally:
                callers.terminate()
            answers, _ = callers.communicate()
        assert callers.returncode == 0
        assert (int(answers) > 0) == (kind in BODIES)


def _wait_for_answers(server: RunningServer, count: int) -> None:
    """Wait until the server has answered `count` more requests.

    Four callers, and four of the previous kind, can have one unread answer each: 12 answers prove that one was read.
    """
    answered = partial(metric_value, server.metrics_url, "headwaiter_requests_total")
    end, end_s = answered() + count, time.monotonic() + 60.0
    while answered() < end:
        assert time.monotonic() < end_s, f"fewer than {count} answers in 60 s"
        time.sleep(0.05)
