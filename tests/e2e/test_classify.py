"""Scores over real gRPC equal those of `transformers`, for pairs, texts, token ids and tokens."""

import asyncio
import runpy
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import pytest_asyncio
import torch
import transformers
from numpy.typing import NDArray

from headwaiter_client import AsyncClient, InvalidInput, SequenceTooLong
from headwaiter_client.calls import steps
from headwaiter_proto import encoder_pb2 as pb
from headwaiter_server.app import Server
from tests.support.documents import ROOT
from tests.support.e2e.classifiers import MAX_TEXT_TOKENS, export_classifier, save_classifier
from tests.support.e2e.in_process_server import connect, metrics_url, post, serving
from tests.support.e2e.open_inference_caller import calling, raw_request
from tests.support.e2e.prometheus_metrics import read_metric
from tests.support.shared_folders import SharedFolders

# The tests of a module share its event loop, in which the server of the cross-encoder runs.
pytestmark = pytest.mark.asyncio(loop_scope="module")

QUERY = "rain on bread"
DOCUMENTS = ["the rain falls on stone", "fresh bread", "a table for two please", "bread is fresh on the table", "a"]
Array = NDArray[Any]
# A bundle, the model of transformers, and its tokenizer.
Exported = tuple[Path, Any, Any]
Export = Callable[[str, int], Exported]


@pytest.fixture(scope="session")
def export(tmp_path_factory: pytest.TempPathFactory, shared_folders: SharedFolders, runs_graphs: None) -> Export:
    """Return a function that exports a random BERT with a head: a class of transformers, and its number of labels."""

    def export(kind: str, labels: int) -> Exported:
        checkpoint = tmp_path_factory.mktemp("checkpoint")
        model = save_classifier(checkpoint, kind, labels)
        bundle = shared_folders.get(f"{kind}-{labels}", partial(export_classifier, checkpoint))
        return bundle, model, transformers.AutoTokenizer.from_pretrained(checkpoint)

    return export


@dataclass(frozen=True)
class Served:
    """A cross-encoder on a server, and its model and tokenizer in transformers."""

    server: Server
    client: AsyncClient
    model: Any
    tokenizer: Any


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cross_encoder(export: Export) -> AsyncIterator[Served]:
    bundle, model, tokenizer = export("BertForSequenceClassification", 1)
    async with serving(bundle, http_api="on") as server, connect(server) as client:
        yield Served(server, client, model, tokenizer)


@torch.inference_mode()
def logits(model: Any, tokens: Any) -> Array:
    """Return the logits that transformers computes for the tokens of one text or pair."""
    expected: Array = model(**tokens).logits[0].numpy()
    return expected


def assert_near(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)


def sigmoid(values: Array) -> Array:
    return torch.tensor(values).sigmoid().numpy()


def softmax(values: Array) -> Array:
    return torch.tensor(values).softmax(-1).numpy()


async def test_attention_across_a_pair_equals_that_of_transformers(cross_encoder: Served) -> None:
    pair = QUERY, DOCUMENTS[0]
    tokens = cross_encoder.tokenizer(*pair, return_tensors="pt")
    with torch.inference_mode():
        expected = torch.cat(cross_encoder.model(**tokens, output_attentions=True).attentions).numpy()
    attention = await cross_encoder.client.attend(pair)
    assert attention.tokens == cross_encoder.tokenizer.convert_ids_to_tokens(tokens["input_ids"][0])
    assert_near(attention.weights, expected)
    request = pb.AttendRequest(pairs=pb.Pairs(first=pair[:1], second=DOCUMENTS[:2]))
    with pytest.raises(InvalidInput) as refused:
        await cross_encoder.client._run(steps.attend(request, 10.0))
    assert (refused.value.field, refused.value.actual) == ("pairs.second", 2)


async def test_a_cross_encoder_reranks_like_transformers(cross_encoder: Served) -> None:
    client, model, tokenizer = cross_encoder.client, cross_encoder.model, cross_encoder.tokenizer
    expected = [float(sigmoid(logits(model, tokenizer(QUERY, each, return_tensors="pt")))[0]) for each in DOCUMENTS]
    labels = {"method": "Classify", "code": "OK"}
    before = await read_metric(metrics_url(cross_encoder.server), "headwaiter_requests_total", **labels)
    ranking = await client.rerank(QUERY, DOCUMENTS)
    assert [each.index for each in ranking.documents] == np.argsort(-np.array(expected)).tolist()
    assert_near([each.score for each in ranking.documents], sorted(expected, reverse=True))
    best = await client.rerank(QUERY, DOCUMENTS, top_n=2)
    assert [each.document for each in best.documents] == [each.document for each in ranking.documents[:2]]
    raw = await client.classify([(QUERY, each) for each in DOCUMENTS], raw_scores=True)
    assert_near(sigmoid(raw.scores)[:, 0], expected)
    description = await client.model()
    assert description.tasks == {"encode", "classify", "rerank", "attend"}
    assert (description.head.function, description.token_types) == ("sigmoid", 2)
    after = await read_metric(metrics_url(cross_encoder.server), "headwaiter_requests_total", **labels)
    assert after - before == 3


async def test_the_example_prints_the_documents_in_their_order(
    cross_encoder: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["rerank.py", f"127.0.0.1:{cross_encoder.server.port}"])
    await asyncio.to_thread(runpy.run_path, str(ROOT / "examples" / "client" / "rerank.py"))
    places, scores = zip(*(line.split()[:2] for line in capsys.readouterr().out.splitlines()), strict=True)
    assert places == ("1.", "2.", "3.")
    assert list(scores) == sorted(scores, reverse=True)


@pytest.mark.parametrize("strategy", ["longest_first", "only_second"])
@pytest.mark.parametrize("side", ["right", "left"])
async def test_long_pairs_are_truncated_like_transformers(strategy: Any, side: Any, cross_encoder: Served) -> None:
    client, tokenizer = cross_encoder.client, cross_encoder.tokenizer
    tokenizer.truncation_side = side
    # Of 24 tokens, 3 are special: 21 are left for the words.
    counts = [(10, 11), (11, 11), (10, 12), (3, 40), (20, 20), (20, 40), (40, 5)]
    pairs = [(" ".join(["rain"] * first), " ".join(["bread", "a"] * second)[: 4 * second]) for first, second in counts]
    result = await client.classify(pairs, truncation=side, pair_truncation=strategy, partial=True)
    for index, (first, second) in enumerate(pairs):
        if strategy == "only_second" and len(tokenizer.tokenize(first)) >= MAX_TEXT_TOKENS - 3:
            failure = result.failures[index]
            assert isinstance(failure, SequenceTooLong)
            assert failure.field == "pairs.first"
            continue
        tokens = tokenizer(first, second, truncation=strategy, max_length=MAX_TEXT_TOKENS, return_tensors="pt")
        assert result.lengths[index] == tokens["input_ids"].shape[1]
        assert_near(result.scores[index], sigmoid(logits(cross_encoder.model, tokens)))
    with pytest.raises(SequenceTooLong) as refused:
        await client.rerank(pairs[-1][0], ["bread"])
    assert (refused.value.field, refused.value.limit) == ("pairs", MAX_TEXT_TOKENS)


async def test_token_ids_with_types_are_scored_like_the_texts(cross_encoder: Served) -> None:
    client = cross_encoder.client
    expected = (await client.classify([(QUERY, DOCUMENTS[0]), (QUERY, DOCUMENTS[1])])).scores
    sent = [cross_encoder.tokenizer(QUERY, each) for each in DOCUMENTS[:2]]
    ids = np.concatenate([each["input_ids"] for each in sent]).astype("<i4").tobytes()
    types = bytes(np.concatenate([each["token_type_ids"] for each in sent]).tolist())
    tokens = pb.TokenSequences(
        dtype=pb.DATA_TYPE_INT32, data=ids, types=types, lengths=[len(each["input_ids"]) for each in sent]
    )
    # The client cannot send token types.
    async with grpc.aio.insecure_channel(f"127.0.0.1:{cross_encoder.server.port}") as channel:
        classify: Any = channel.unary_unary("/headwaiter.v1.Encoder/Classify")
        reply = pb.ClassifyResponse.FromString(await classify(pb.ClassifyRequest(tokens=tokens).SerializeToString()))
        assert_near(np.frombuffer(reply.scores.data, "<f4")[:, None], expected)
        tokens.types = bytes([2]) + types[1:]
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await classify(pb.ClassifyRequest(tokens=tokens).SerializeToString())
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    without_types = (await client.classify([each["input_ids"] for each in sent])).scores
    assert np.abs(without_types - expected).max() > 1e-4


async def test_scores_over_the_open_inference_protocol_are_those_of_classify(cross_encoder: Served) -> None:
    client = cross_encoder.client
    async with calling(cross_encoder.server) as caller:
        request = raw_request("classifier", texts=[QUERY] * 2)
        expected = (await client.classify([QUERY] * 2)).scores
        np.testing.assert_array_equal((await caller.infer(request))["scores"], expected)
        request.inputs.add(name="text_pair", datatype="BYTES", shape=[2])
        encoded = [text.encode() for text in DOCUMENTS[:2]]
        request.raw_input_contents.append(b"".join(len(each).to_bytes(4, "little") + each for each in encoded))
        expected = (await client.classify([(QUERY, each) for each in DOCUMENTS[:2]], raw_scores=True)).scores
        request.parameters["raw_scores"].bool_param = True
        answer = await caller.infer(request)
        assert answer.keys() == {"scores"}
        np.testing.assert_array_equal(answer["scores"], expected)


async def test_http_ranks_and_classifies_like_the_client(cross_encoder: Served) -> None:
    server, client = cross_encoder.server, cross_encoder.client
    expected = [(each.index, each.score) for each in (await client.rerank(QUERY, DOCUMENTS)).documents]
    for path in ("/v1/rerank", "/v2/rerank"):
        results = (await post(server, path, query=QUERY, documents=DOCUMENTS, top_n=0, priority=0))["results"]
        assert [(each["index"], each["relevance_score"]) for each in results] == expected
    results = await post(server, "/rerank", query=QUERY, texts=DOCUMENTS, return_text=True)
    assert [(each["index"], each["score"]) for each in results] == expected
    assert [each["text"] for each in results] == [DOCUMENTS[index] for index, _ in expected]
    scored = (await post(server, "/score", text_1=QUERY, text_2=DOCUMENTS))["data"]
    assert sorted(((each["index"], each["score"]) for each in scored), key=lambda each: -each[1]) == expected
    probabilities = (await client.classify(DOCUMENTS)).scores
    classified = (await post(server, "/v1/classify", input=DOCUMENTS))["data"]
    assert_near(np.array([each["probs"] for each in classified]), probabilities)
    pooled = (await post(server, "/pooling", input=DOCUMENTS, task="classify"))["data"]
    assert_near(np.array([each["data"] for each in pooled]), probabilities)
    # The texts of a pair may be empty.
    expected = [(each.index, each.score) for each in (await client.rerank("", ["", "bread"])).documents]
    results = await post(server, "/rerank", query="", texts=["", "bread"])
    assert [(each["index"], each["score"]) for each in results] == expected


@pytest.mark.exhaustive
async def test_tokens_have_labels_with_offsets(export: Export) -> None:
    bundle, model, tokenizer = export("BertForTokenClassification", 5)
    async with serving(bundle) as server, connect(server) as client, calling(server) as caller:
        result = await client.classify(DOCUMENTS, offsets=True)
        for text, scores, offsets in zip(DOCUMENTS, result.token_scores, result.offsets, strict=True):
            assert_near(scores, softmax(logits(model, tokenizer(text, return_tensors="pt"))))
            expected = tokenizer(text, return_offsets_mapping=True)["offset_mapping"]
            assert offsets.tolist() == [list(each) for each in expected]
        padded = (await caller.infer(raw_request("classifier", texts=DOCUMENTS)))["scores"]
        assert padded.shape == (len(DOCUMENTS), result.lengths.max(), 5)
        for row, scores in zip(padded, result.token_scores, strict=True):
            np.testing.assert_array_equal(row[: len(scores)], scores)
            assert not row[len(scores) :].any()
        assert "classify_tokens" in (await client.model()).tasks
        attention = await client.attend(DOCUMENTS[0])
        assert attention.tokens[0] == "[CLS]"
