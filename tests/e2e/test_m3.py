"""A served model like bge-m3 gives a dense vector, a sparse one, and one of each token, from one run of the text."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from headwaiter_proto import open_inference_pb2 as oip
from tests.support.e2e.exported import export_checkpoint
from tests.support.e2e.in_process_server import connect, serving
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
        sparse = await client.encode(TEXTS, truncation="right", pooled=False, sparse=True)
        assert sparse.received_pooled is None
        assert sparse.received_hidden is None
        assert (await client.encode(TEXTS, truncation="right")).received_sparse is None
        weights = await client.classify(TEXTS, truncation="right", offsets=True)
        for entries, text_weights, outputs in zip(sparse.sparse, weights.token_scores, expected, strict=True):
            assert_equal_weights(entries, outputs.weights)
            assert text_weights.min() >= 0
            assert text_weights.max() >= max(outputs.weights.values(), default=0) - 1e-5
        (halves,) = (await client.encode(TEXTS[:1], sparse=True, dtype="float16")).sparse
        assert halves["value"].dtype == np.float16
        np.testing.assert_allclose(halves["value"], sparse.sparse[0]["value"], rtol=1e-3)


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
        described = await caller.ModelMetadata(oip.ModelMetadataRequest(name="m3"))
        shapes = {output.name: list(output.shape) for output in described.outputs}
        assert (shapes["pooled"], shapes["hidden"]) == ([-1, 32], [-1, -1, VECTOR_WIDTH])
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
