"""A short version of each long run; it checks every promise except those about time."""

import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from testbed.server_process import RunningServer, running_server
from tests.support.soak import http2_abuse
from tests.support.soak.checks import holdings, leaks, metrics
from tests.support.soak.faulty_server import START_FAULTS
from tests.support.soak.fuzzer import Fuzzer
from tests.support.soak.load import MixedLoad
from tests.support.soak.mutations import mutated_calls

MESSAGES = 2000
LOAD_S = 1.0
ATTACK_SCALE = 0.02
SETTLE_S = 10.0


@pytest.fixture(scope="module")
def server(text_bundle: Path, starts_processes: None) -> Iterator[RunningServer]:
    """A server whose device can fail."""
    program = [sys.executable, "-m", "tests.support.soak.faulty_server"]
    with running_server(text_bundle, ["--provider", "cpu", "--instances", "2"], program=program) as server:
        yield server


def test_mutated_messages_are_reproducible() -> None:
    first, second, other = (list(islice(mutated_calls(seed), 50)) for seed in (1, 1, 2))
    assert first == second
    assert first != other


def test_mutated_messages_are_answered_without_internal_errors(server: RunningServer) -> None:
    before, fuzzer = holdings(server), Fuzzer(server.address)
    fuzzer.run(mutated_calls(0), MESSAGES)
    assert (fuzzer.broken, fuzzer.lost) == ([], 0)
    assert fuzzer.sent.total() >= MESSAGES
    assert {"OK", "INVALID_ARGUMENT", "NOT_FOUND"} <= set(fuzzer.answers)
    assert leaks(server, before, SETTLE_S) == []


def test_attacks_on_http2_leave_the_server_as_it_was(server: RunningServer) -> None:
    before = holdings(server)
    for attack in http2_abuse.ATTACKS:
        attack(server.address, ATTACK_SCALE)
    assert leaks(server, before, SETTLE_S) == []


@pytest.mark.exhaustive
def test_calls_with_oversized_headers_are_freed_without_further_calls(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A call that Python holds keeps over 1 MiB of its connection. Resident memory itself depends on the allocator.
    monkeypatch.setattr(http2_abuse, "_ATTACK_S", 0.0)
    http2_abuse.oversized_headers(server.address, 1.0)
    end_s = time.monotonic() + SETTLE_S
    while metrics(server)["soak_held_calls"] and time.monotonic() < end_s:
        time.sleep(0.1)
    assert metrics(server)["soak_held_calls"] == 0


@pytest.mark.exhaustive
async def test_a_mixed_load_on_failing_devices_loses_nothing(server: RunningServer) -> None:
    load = MixedLoad(server.address, seed=0)
    await load.learn_answers()
    before = holdings(server)
    server.process.send_signal(START_FAULTS)
    await load.run(LOAD_S)
    await load.close()
    assert (load.lost, load.wrong, load.broken) == (0, [], [])
    assert sum(counts["OK"] for counts in load.outcomes.values()) > 0
    assert leaks(server, before, SETTLE_S) == []
