"""The servers that are Headwaiter's own but for one thing start, and differ in that."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.measure import counters
from bench.servers.poisoned import POISON
from bench.servers.silent import RECORD, SILENCE
from headwaiter_client import Client, InferenceFailed
from testbed.server_process import RunningServer, running_server


@contextmanager
def _serving(module: str, bundle: Path) -> Iterator[tuple[RunningServer, Client]]:
    flags = ["--provider", "cpu", "--threads", "1", "--cache-dir", ""]
    with (
        running_server(bundle, flags, program=[sys.executable, "-m", module]) as server,
        Client(server.address) as client,
    ):
        yield server, client


def test_the_null_server_answers_with_the_sum_of_the_ids_and_their_number(text_bundle: Path) -> None:
    with _serving("bench.servers.null", text_bundle) as (_, client):
        pooled = client.encode_tokens([[9, 6, 20]], normalize=False).pooled
        assert pooled is not None
        assert pooled[0, :3].tolist() == [35, 3, 0]


def test_the_poisoned_server_fails_on_poison_alone(text_bundle: Path) -> None:
    with _serving("bench.servers.poisoned", text_bundle) as (_, client):
        assert client.encode_tokens([[9, 6, 20]]).pooled is not None
        with pytest.raises(InferenceFailed):
            client.encode_tokens([POISON])


def test_the_silent_server_counts_nothing_until_it_is_told_to(text_bundle: Path) -> None:
    with _serving("bench.servers.silent", text_bundle) as (server, client):

        def counted() -> float:
            client.encode_tokens([[9, 6, 20]])
            return counters(server.metrics_url)["headwaiter_batch_sequences_sum"]

        recorded = counted()
        server.process.send_signal(SILENCE)
        assert counted() == recorded > 0
        server.process.send_signal(RECORD)
        assert counted() == recorded + 1
