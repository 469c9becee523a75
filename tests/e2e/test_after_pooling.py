"""A served checkpoint with modules after its pooling gives the vectors of sentence-transformers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headwaiter_client import InvalidInput
from headwaiter_proto import open_inference_pb2 as oip
from headwaiter_server.runtime.bundle import Bundle
from tests.support.e2e.exported import export_checkpoint
from tests.support.e2e.in_process_server import connect, serving
from tests.support.e2e.open_inference_caller import calling, raw_request

MAX_ABS = 1e-5
ROW_WIDTH, VECTOR_WIDTH = 32, 20
TEXTS = ["the bread is fresh", "two tables for rain, please", "a"]


@pytest.fixture
def reference(text_checkpoint: Path) -> Any:
    """A model like EmbeddingGemma: mean, two Dense modules without activations, unit length."""
    torch, st = pytest.importorskip("torch"), pytest.importorskip("sentence_transformers")
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    torch.manual_seed(0)
    linear: dict[str, Any] = {"bias": False, "activation_function": torch.nn.Identity()}
    chain = [
        modules.Pooling(ROW_WIDTH, "mean"),
        modules.Dense(ROW_WIDTH, 96, **linear),
        modules.Dense(96, VECTOR_WIDTH, **linear),
        modules.Normalize(),
    ]
    transformer = st.SentenceTransformer(str(text_checkpoint), device="cpu")[0]
    return st.SentenceTransformer(modules=[transformer, *chain], device="cpu")


@pytest.mark.exhaustive
async def test_a_model_with_dense_modules_is_served_like_sentence_transformers(
    reference: Any, runs_graphs: None, tmp_path: Path
) -> None:
    reference.save(str(tmp_path / "checkpoint"))
    export_checkpoint(tmp_path / "checkpoint", tmp_path / "bundle", "dense")
    # Readers that know no modules after the pooling would return its vectors.
    assert Bundle.open(tmp_path / "bundle").manifest.schema_version == 2
    async with serving(tmp_path / "bundle") as server, connect(server) as client, calling(server) as caller:
        model = await client.model()
        assert (model.width, model.hidden_width) == (VECTOR_WIDTH, ROW_WIDTH)
        assert model.poolings == ("mean",)

        both = await client.encode(TEXTS, pooled=True, hidden=True)
        np.testing.assert_allclose(both.pooled, reference.encode(TEXTS), rtol=0, atol=MAX_ABS)
        rows = reference.encode(TEXTS, output_value="token_embeddings")
        for hidden, expected in zip(both.hidden, (each.numpy() for each in rows), strict=True):
            assert hidden.shape[1] == ROW_WIDTH
            np.testing.assert_allclose(hidden, expected, rtol=0, atol=MAX_ABS * np.abs(expected).max())
        short = await client.encode(TEXTS, dimensions=7)
        expected = reference.encode(TEXTS, truncate_dim=7, normalize_embeddings=True)
        np.testing.assert_allclose(short.pooled, expected, rtol=0, atol=MAX_ABS)

        with pytest.raises(InvalidInput) as refused:
            await client.encode(TEXTS, pooling="cls")
        assert refused.value.field == "output.pooling"
        with pytest.raises(InvalidInput) as refused:
            await client.encode(TEXTS, dimensions=VECTOR_WIDTH + 1)
        assert refused.value.limit == VECTOR_WIDTH

        described = await caller.ModelMetadata(oip.ModelMetadataRequest(name="dense"))
        shapes = {output.name: list(output.shape) for output in described.outputs}
        assert (shapes["pooled"], shapes["hidden"]) == ([-1, VECTOR_WIDTH], [-1, -1, ROW_WIDTH])
        answer = await caller.infer(raw_request("dense", ("pooled", "hidden"), texts=TEXTS))
        np.testing.assert_array_equal(answer["pooled"], both.pooled)
        assert answer["hidden"].shape[2] == ROW_WIDTH
