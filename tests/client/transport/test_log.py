"""The log records of a client, and their rate."""

import logging
import socket
import subprocess
import sys

import pytest

from headwaiter_client import Client, RetryPolicy, Unavailable
from headwaiter_client.transport.log import TransportLog
from headwaiter_client.transport.replicas import Change
from tests.support.client.fake_server import FakeServer

GONE = Unavailable("gone")


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> TransportLog:
    caplog.set_level(logging.DEBUG, "headwaiter_client")
    return TransportLog(["a:1", "b:2"])


def test_each_event_has_a_level_and_names_the_replica(log: TransportLog, caplog: pytest.LogCaptureFixture) -> None:
    log.change(0, Change.DOWN, "refused", 1)
    log.change(0, Change.UP, "", 1)
    log.failover("Encode", 1, GONE, 1)
    log.retry("Encode", 0.25, 2, GONE, 1)
    records = [(record.name, record.levelname, record.getMessage()) for record in caplog.records]
    assert {name for name, _, _ in records} == {"headwaiter_client"}
    assert [level for _, level, _ in records] == ["WARNING", "INFO", "INFO", "INFO"]
    facts = [["a:1", "down", "refused"], ["a:1", "up"], ["Encode", "b:2"], ["0.25", "2"]]
    for (_, _, message), shown in zip(records, facts, strict=True):
        assert all(fact in message for fact in shown)


def test_each_kind_is_written_once_a_second_with_the_number_of_omitted_records(
    log: TransportLog, caplog: pytest.LogCaptureFixture
) -> None:
    for hundredth in range(1000):
        log.retry("Encode", 0.1, 1, GONE, hundredth / 100)
    assert len(caplog.records) == 10
    assert "99 like it" in caplog.records[-1].getMessage()


def test_replicas_do_not_share_a_rate(log: TransportLog, caplog: pytest.LogCaptureFixture) -> None:
    for index in (0, 1):
        log.change(index, Change.UP, "", 1)
    assert len(caplog.records) == 2


@pytest.mark.usefixtures("starts_processes")
def test_a_program_that_sets_up_no_logging_prints_nothing() -> None:
    program = (
        "from headwaiter_client import Client, Unavailable\n"
        "try: Client('127.0.0.1:1').encode(['a'])\n"
        "except Unavailable: print('unavailable')"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert (run.stdout, run.stderr) == ("unavailable\n", "")


@pytest.mark.parametrize("fails", ["stops", "answers nothing"])
def test_a_client_logs_a_replica_that_goes_down(
    server: FakeServer, caplog: pytest.LogCaptureFixture, fails: str
) -> None:
    other = FakeServer()
    with Client([server.address, other.address]) as client:
        while not (server.requests and other.requests):
            client.encode(["a"])
        if fails == "stops":
            other.stop()
        else:
            other.released.clear()
        for _ in range(4):
            client.encode(["a"], timeout_s=2)
    other.stop()
    assert any(f"{other.address} is down" in record.getMessage() for record in caplog.records)


def test_a_client_logs_a_retry(server: FakeServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headwaiter_client")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with (
            Client(f"127.0.0.1:{unused.getsockname()[1]}", retry=RetryPolicy(max_attempts=2)) as client,
            pytest.raises(Unavailable),
        ):
            client.encode(["a"])
    assert any("Encode is sent again" in record.getMessage() for record in caplog.records)
