"""The modified Headwaiter servers start, and differ from Headwaiter in one property."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.servers.modified import POISON
from headwaiter_client import Client, InferenceFailed
from testbed.server_process import running_server

pytestmark = pytest.mark.usefixtures("starts_processes")


@contextmanager
def _serving(kind: str, bundle: Path) -> Iterator[Client]:
    flags = ["--provider", "cpu", "--threads", "1"]
    with (
        running_server(bundle, flags, program=[sys.executable, "-m", "bench.servers.modified", kind]) as server,
        Client(server.address) as client,
    ):
        yield client


@pytest.mark.exhaustive
def test_the_null_server_answers_with_the_sum_and_the_number_of_the_ids(text_bundle: Path) -> None:
    with _serving("null", text_bundle) as client:
        pooled = client.encode_tokens([[9, 6, 20]], normalize=False).pooled
        assert pooled is not None
        assert pooled[0, :2].tolist() == [35, 3]


@pytest.mark.exhaustive
def test_the_poisoned_server_fails_only_on_poisoned_sequences(text_bundle: Path) -> None:
    with _serving("poisoned", text_bundle) as client:
        assert client.encode_tokens([[9, 6, 20]]).pooled is not None
        with pytest.raises(InferenceFailed):
            client.encode_tokens([POISON])
