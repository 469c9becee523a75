"""A served model of sparse vectors gives those of `sentence-transformers`, over gRPC and HTTP."""

from pathlib import Path

import numpy as np
import pytest

from headwaiter_client.errors import OutputMissing
from headwaiter_proto.rules.sparse import dense_vectors
from tests.support.e2e.exported import export_checkpoint
from tests.support.e2e.in_process_server import connect, post, serving
from tests.support.export.sparse_encoder import TEXTS, expected_vectors, save_sparse_encoder
from tests.support.oracle import Array
from tests.support.shared_folders import SharedFolders
from tests.support.tiers import exhaustive


@pytest.fixture(scope="module")
def checkpoint(shared_folders: SharedFolders) -> Path:
    """A folder with the checkpoint and its bundle."""

    def write(folder: Path) -> None:
        folder.mkdir()
        save_sparse_encoder(folder / "checkpoint")
        export_checkpoint(folder / "checkpoint", folder / "bundle", "splade")

    return shared_folders.get("sparse-encoder", write)


@pytest.fixture
def expected(checkpoint: Path) -> Array:
    """The vectors of `sentence-transformers`."""
    return expected_vectors(checkpoint / "checkpoint")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("front_ends", [0, *exhaustive(1)])
async def test_the_client_gets_sparse_vectors(front_ends: int, checkpoint: Path, expected: Array) -> None:
    width = expected.shape[1]
    async with serving(checkpoint / "bundle", front_ends=front_ends) as server, connect(server) as client:
        encoding = await client.encode(TEXTS)
        np.testing.assert_allclose(dense_vectors(encoding.sparse, width), expected, rtol=0, atol=1e-5)
        assert [len(each) for each in encoding.sparse] == np.count_nonzero(expected, axis=1).tolist()
        with pytest.raises(OutputMissing, match="sparse"):
            encoding.pooled  # noqa: B018 - reading it raises
        dense = await client.encode(TEXTS, dense=True, hidden=True)
        np.testing.assert_allclose(dense.pooled, expected, rtol=0, atol=1e-5)
        assert [len(rows) for rows in dense.hidden] == dense.lengths.tolist()
        unit = await client.encode(TEXTS, normalize=True, dtype="float16")
        lengths = [np.linalg.norm(each["value"].astype(float)) for each in unit.sparse]
        np.testing.assert_allclose(lengths, 1.0, atol=1e-3)
        for number, text in enumerate(TEXTS):
            alone = await client.encode([text])
            np.testing.assert_array_equal(alone.sparse[0]["index"], encoding.sparse[number]["index"])
        model = await client.model()
        assert model.sparse
        assert model.width == width
        assert model.hidden_width == 32


@pytest.mark.filterwarnings("ignore")
async def test_http_gives_the_entries_as_tei_does(checkpoint: Path, expected: Array) -> None:
    async with serving(checkpoint / "bundle", http_api="on") as server:
        texts, rows = [text for text in TEXTS if text], expected[[bool(text) for text in TEXTS]]
        reply = await post(server, "/embed_sparse", inputs=texts)
        for entries, vector in zip(reply, rows, strict=True):
            assert [each["index"] for each in entries] == np.flatnonzero(vector).tolist()
            np.testing.assert_allclose([each["value"] for each in entries], vector[vector > 0], rtol=0, atol=1e-5)
        dense = await post(server, "/v1/embeddings", input=texts, model="splade")
        np.testing.assert_allclose([each["embedding"] for each in dense["data"]], rows, rtol=0, atol=1e-5)
