"""A served language model reranks as sentence-transformers does, long documents included."""

from pathlib import Path

import numpy as np
import pytest

from tests.support.e2e.exported import export_checkpoint
from tests.support.e2e.in_process_server import connect, serving
from tests.support.export.language_model_reranker import save_reranker
from tests.support.server.bundles import read_manifest

QUERY = "is the bread fresh?"
LIMIT = 160
DOCUMENTS = ["fresh bread on the table.", "rain falls on stone", "", "rain and stones, and more rain. " * 40]


# Exporting a bundle takes seconds. In every run, the scores of such a checkpoint are compared in PyTorch.
@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("front_ends", [0, 1])
async def test_documents_are_scored_as_by_sentence_transformers(front_ends: int, tmp_path: Path) -> None:
    from sentence_transformers import CrossEncoder

    checkpoint, bundle = tmp_path / "checkpoint", tmp_path / "bundle"
    save_reranker(checkpoint, max_position_embeddings=LIMIT)
    export_checkpoint(checkpoint, bundle, "reranker")
    model = CrossEncoder(str(checkpoint), device="cpu")
    model.max_seq_length = LIMIT
    expected = model.predict([(QUERY, each) for each in DOCUMENTS])
    async with serving(bundle, front_ends=front_ends) as server, connect(server) as client:
        ranking = await client.rerank(QUERY, DOCUMENTS, truncation="right", pair_truncation="only_second")
        assert [each.index for each in ranking.documents] == np.argsort(-expected).tolist()
        scores = [each.score for each in ranking.documents]
        np.testing.assert_allclose(scores, np.sort(expected)[::-1], rtol=0, atol=1e-5)
        assert (await client.model()).tasks >= {"classify", "rerank"}
    # Readers that know no templates would score other texts.
    assert read_manifest(bundle).schema_version == 2
