"""A served model like bge-m3 gives a dense vector, a sparse one, and one of each token, from one run of the text."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from headwaiter_client import AsyncClient
from headwaiter_proto.rules.errors import InvalidInput
from tests.support.e2e.exported import export_checkpoint
from tests.support.e2e.in_process_server import connect, post, serving
from tests.support.e2e.open_inference_caller import calling, raw_request
from tests.support.export.m3_checkpoint import TEXTS, VECTOR_WIDTH, M3Outputs, expected_outputs, save_m3
from tests.support.oracle import Array
from tests.support.shared_folders import SharedFolders
from tests.support.tiers import exhaustive


@pytest.fixture(scope="module")
def checkpoint(shared_folders: SharedFolders) -> Path:
    """A folder with the checkpoint and its bundle."""

    def write(folder: Path) -> None:
        save_m3(folder / "checkpoint")
        export_checkpoint(folder / "checkpoint", folder / "bundle", "m3")

    return shared_folders.get("m3", write)


@pytest.fixture
def expected(checkpoint: Path) -> list[M3Outputs]:
    """The outputs of `TEXTS`, cut to the 32 tokens of the checkpoint."""
    return expected_outputs(checkpoint / "checkpoint", 32)


def assert_equal_weights(entries: Array, expected: dict[int, float]) -> None:
    assert entries["index"].tolist() == sorted(expected)
    np.testing.assert_allclose(entries["value"], [expected[i] for i in sorted(expected)], rtol=0, atol=1e-5)


@pytest.mark.parametrize("front_ends", [0, *exhaustive(1)])
async def test_one_call_returns_three_kinds_of_vectors(
    front_ends: int, checkpoint: Path, expected: list[M3Outputs]
) -> None:
    async with serving(checkpoint / "bundle", front_ends=front_ends) as server, connect(server) as client:
        model = await client.model()
        assert (model.weighs_tokens, model.sparse, model.tasks) == (True, False, frozenset({"encode"}))
        assert (model.width, model.hidden_width, model.poolings) == (32, VECTOR_WIDTH, ("cls",))
        found = await client.encode(TEXTS, truncation="right", hidden=True, sparse=True, offsets=True)
        for text, dense, entries, vectors, offsets, outputs in zip(
            TEXTS, found.pooled, found.sparse, found.hidden, found.offsets, expected, strict=True
        ):
            np.testing.assert_allclose(dense, outputs.dense, rtol=0, atol=1e-5)
            assert_equal_weights(entries, outputs.weights)
            # FlagEmbedding leaves out the vector of the class token.
            np.testing.assert_allclose(vectors[1:], outputs.vectors, rtol=0, atol=1e-5)
            assert len(offsets) == len(vectors)
            assert offsets[1:-1].tolist() == sorted(offsets[1:-1].tolist()), text
        await check_outputs_alone(client, expected)
        await check_refusals(client)


async def check_outputs_alone(client: AsyncClient, expected: list[M3Outputs]) -> None:
    """Each output comes alone too, and the tokens of a text give what the text gives."""
    sparse = await client.encode(TEXTS, truncation="right", pooled=False, sparse=True)
    assert sparse.received_pooled is None
    assert sparse.received_hidden is None
    plain = await client.encode(TEXTS, truncation="right")
    assert plain.received_sparse is None
    weights = await client.classify(TEXTS, truncation="right", offsets=True)
    for entries, text_weights, outputs in zip(sparse.sparse, weights.token_scores, expected, strict=True):
        assert_equal_weights(entries, outputs.weights)
        assert text_weights.min() >= 0
        assert text_weights.max() >= max(outputs.weights.values(), default=0) - 1e-5
    ids = [[2, 30, 3], [2, 3]]
    tokens = await client.encode_tokens(ids, hidden=True, sparse=True)
    assert [len(rows) for rows in tokens.hidden] == [3, 2]
    assert tokens.lengths.tolist() == [3, 2]
    halves = await client.encode(TEXTS[:1], sparse=True, dtype="float16")
    assert_allclose_half(halves.sparse[0], sparse.sparse[0])


def assert_allclose_half(halves: Array, full: Array) -> None:
    assert halves["value"].dtype == np.float16
    assert halves["index"].tolist() == full["index"].tolist()
    np.testing.assert_allclose(halves["value"], full["value"], rtol=1e-3)


async def check_refusals(client: AsyncClient) -> None:
    with pytest.raises(InvalidInput):
        await client.encode(TEXTS, truncation="right", sparse=True, dtype="int8")
    with pytest.raises(InvalidInput):
        await client.encode(TEXTS, truncation="right", sparse=True, pooling="mean")


async def test_a_model_without_weights_of_tokens_refuses_the_option(text_bundle: Path) -> None:
    async with serving(text_bundle) as server, connect(server) as client:
        with pytest.raises(InvalidInput) as refused:
            await client.encode(["bread"], sparse=True)
        assert refused.value.field == "model"


async def test_the_only_model_that_weighs_tokens_answers_a_request_for_sparse_vectors(
    checkpoint: Path, text_bundle: Path, tmp_path: Path
) -> None:
    for name, bundle in (("m3", checkpoint / "bundle"), ("plain", text_bundle)):
        shutil.copytree(bundle, tmp_path / name / "1")
    async with serving(None, models=tmp_path, default_model="plain") as server, connect(server) as client:
        assert (await client.encode(["bread"], pooled=False, sparse=True)).model.name == "m3"
        assert (await client.encode(["bread"])).model.name == "plain"


async def test_the_open_inference_protocol_gives_dense_vectors_by_default(
    checkpoint: Path, expected: list[M3Outputs]
) -> None:
    async with serving(checkpoint / "bundle") as server, calling(server) as caller:
        texts = [TEXTS[0], TEXTS[2]]
        answer = await caller.infer(raw_request("m3", texts=texts))
        assert [*answer] == ["pooled"]
        np.testing.assert_allclose(answer["pooled"], [expected[0].dense, expected[2].dense], rtol=0, atol=1e-5)
        everything = await caller.infer(raw_request("m3", ("scores", "hidden", "token_count"), texts=texts))
        for rows, scores, count, outputs in zip(
            everything["hidden"],
            everything["scores"],
            everything["token_count"],
            (expected[0], expected[2]),
            strict=True,
        ):
            np.testing.assert_allclose(rows[1:count], outputs.vectors, rtol=0, atol=1e-5)
            assert not rows[count:].any()
            assert not scores[count:].any()


async def test_http_returns_sparse_and_dense_vectors(checkpoint: Path, expected: list[M3Outputs]) -> None:
    texts, outputs = [TEXTS[0], *TEXTS[2:]], [expected[0], *expected[2:]]
    async with serving(checkpoint / "bundle", http_api="on") as server:
        found = await post(server, "/embed_sparse", inputs=texts, truncate=True)
        for entries, of_text in zip(found, outputs, strict=True):
            assert [each["index"] for each in entries] == sorted(of_text.weights)
            values = [of_text.weights[each["index"]] for each in entries]
            np.testing.assert_allclose([each["value"] for each in entries], values, rtol=0, atol=1e-5)
        dense = await post(server, "/embed", inputs=texts, truncate=True)
        np.testing.assert_allclose(dense, [of_text.dense for of_text in outputs], rtol=0, atol=1e-5)
