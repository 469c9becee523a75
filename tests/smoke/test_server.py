"""A server answers like PyTorch, in streams and with scores too; it drains, and outlives the death of a front end."""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
import transformers

from headwaiter_client import Client, SequenceTooLong, Unavailable
from headwaiter_export.encoder.encoder import Encoder
from testbed.server_process import RunningServer, running_server
from tests.support.checkpoints import VOCABULARY, bert_hidden
from tests.support.e2e.classifiers import export_classifier, save_classifier
from tests.support.e2e.in_process_server import connect, metrics_url, paused_device, serving, wait_until
from tests.support.e2e.prometheus_metrics import metric_value
from tests.support.export.helpers import assert_close, assert_close_to_scale, oracle_of, random_sequences
from tests.support.oracle import Array, unit

LENGTHS = (1, 2, 3, 5, 8, 13, 21, 34, 55, 64)


@pytest.fixture(scope="module")
def server(text_bundle: Path) -> Iterator[RunningServer]:
    """A server of "tiny-text" with two front ends in processes of their own."""
    with running_server(text_bundle, ["--provider", "cpu", "--front-ends", "2"]) as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[Client]:
    with Client(server.address, timeout_s=30) as connected:
        yield connected


def token_ids(length: int) -> Array:
    return np.random.default_rng(length).integers(0, len(VOCABULARY), length)


def test_sequences_in_concurrent_requests_equal_transformers(client: Client, text_checkpoint: Path) -> None:
    bert = transformers.BertModel.from_pretrained(text_checkpoint).eval()
    sequences = [token_ids(length) for length in LENGTHS]
    expected = [bert_hidden(bert, ids) for ids in sequences]
    with ThreadPoolExecutor(len(LENGTHS)) as threads:
        # Request n holds the first n sequences.
        requests = [threads.submit(client.encode_tokens, sequences[: n + 1], hidden=True) for n in range(len(LENGTHS))]
    for number, request in enumerate(requests, 1):
        encoding = request.result()
        assert_close(encoding.pooled, unit(np.stack([rows.mean(0) for rows in expected[:number]])))
        assert_close(np.concatenate(encoding.hidden), np.concatenate(expected[:number]))


def test_features_equal_the_formulas(feature_server: RunningServer, feature_encoder: Encoder) -> None:
    sequences = random_sequences(feature_encoder.config, (1, 7, 48, 2))
    with Client(feature_server.address) as client:
        pooled = client.encode_features(sequences).pooled
    oracle = oracle_of(feature_encoder)
    assert_close(pooled, np.stack([oracle.hidden(each).mean(0) for each in sequences]))


def test_a_stream_keeps_the_order_and_goes_on_after_a_sequence_that_is_too_long(client: Client) -> None:
    sequences = [[1] * n for n in (3, 65, 9, *range(1, 64))]
    results = list(client.encode_stream(sequences, partial=True))
    assert [one.index for one in results] == list(range(len(sequences)))
    assert [one.length for one in results if not one.failure] == [len(each) for each in sequences if len(each) < 65]
    assert isinstance(results[1].failure, SequenceTooLong)
    assert (results[1].failure.limit, results[1].failure.actual) == (64, 65)


def test_a_killed_front_end_costs_no_caller_an_answer_and_comes_back(server: RunningServer, client: Client) -> None:
    expected = client.encode(["rain"]).pooled
    killed = psutil.Process(server.process.pid).children()[0]
    killed.kill()
    end_s = time.monotonic() + 30
    for calls in count():
        assert_close(client.encode(["rain"]).pooled, expected)
        if calls > 20 and metric_value(server.metrics_url, "headwaiter_front_ends") == 2:
            break
        assert time.monotonic() < end_s
    assert metric_value(server.metrics_url, "headwaiter_front_end_restarts_total") == 1


async def test_scores_of_pairs_equal_transformers(tmp_path: Path) -> None:
    query, documents = "rain on bread", ["fresh bread", "a table for two please", "rain falls on stone", "a"]
    (tmp_path / "checkpoint").mkdir()
    model = save_classifier(tmp_path / "checkpoint", "BertForSequenceClassification", 1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "checkpoint")
    export_classifier(tmp_path / "checkpoint", tmp_path / "bundle")
    with torch.inference_mode():
        logits = [model(**tokenizer(query, each, return_tensors="pt")).logits[0].numpy() for each in documents]
    async with serving(tmp_path / "bundle") as server, connect(server) as client:
        scores = (await client.classify([(query, each) for each in documents], raw_scores=True)).scores
        ranking = await client.rerank(query, documents)
    assert_close_to_scale(scores, np.stack(logits))
    assert [each.index for each in ranking.documents] == np.argsort(-np.concatenate(logits)).tolist()


async def test_a_drain_answers_what_was_admitted_and_refuses_what_comes_later(text_bundle: Path) -> None:
    async with serving(text_bundle) as server, connect(server) as client:
        with paused_device() as device:
            running = asyncio.create_task(client.encode_tokens([[1] * 3]))
            await device.wait_for_batch()
            waiting = [asyncio.create_task(client.encode_tokens([[1] * length])) for length in range(1, 21)]
            url = metrics_url(server)
            await wait_until(client, lambda: metric_value(url, "headwaiter_queue_sequences") == len(waiting))
            drained = asyncio.create_task(server.drain())
            with pytest.raises(Unavailable, match="shutting down"):
                await client.encode_tokens([[1]])
            assert not await client.is_serving()
            assert not drained.done()
            device.resume()
            answers = await asyncio.gather(running, *waiting)
            await drained
    assert [answer.lengths.tolist() for answer in answers] == [[3], *([length] for length in range(1, 21))]
