"""The modified Headwaiter servers start, and differ from Headwaiter in one property."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.measure import counters
from bench.servers.modified import POISON, RECORD, SILENCE
from headwaiter_client import Client, InferenceFailed
from testbed.server_process import RunningServer, running_server

pytestmark = pytest.mark.usefixtures("starts_processes")


@contextmanager
def _serving(kind: str, bundle: Path) -> Iterator[tuple[RunningServer, Client]]:
    flags = ["--provider", "cpu", "--threads", "1"]
    with (
        running_server(bundle, flags, program=[sys.executable, "-m", "bench.servers.modified", kind]) as server,
        Client(server.address) as client,
    ):
        yield server, client


@pytest.mark.exhaustive
def test_the_null_server_answers_with_the_sum_and_the_number_of_the_ids(text_bundle: Path) -> None:
    with _serving("null", text_bundle) as (_, client):
        pooled = client.encode_tokens([[9, 6, 20]], normalize=False).pooled
        assert pooled is not None
        assert pooled[0, :2].tolist() == [35, 3]


@pytest.mark.exhaustive
def test_the_poisoned_server_fails_only_on_poisoned_sequences(text_bundle: Path) -> None:
    with _serving("poisoned", text_bundle) as (_, client):
        assert client.encode_tokens([[9, 6, 20]]).pooled is not None
        with pytest.raises(InferenceFailed):
            client.encode_tokens([POISON])


def test_the_silent_server_counts_only_while_metrics_are_on(text_bundle: Path) -> None:
    with _serving("silent", text_bundle) as (server, client):

        def count_after_one_request() -> float:
            client.encode_tokens([[9, 6, 20]])
            return counters(server.metrics_url)["headwaiter_batch_sequences_sum"]

        recorded = count_after_one_request()
        server.process.send_signal(SILENCE)
        assert count_after_one_request() == recorded > 0
        server.process.send_signal(RECORD)
        assert count_after_one_request() == recorded + 1
