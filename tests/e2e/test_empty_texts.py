"""An empty text has the vector of sentence-transformers: that of its special tokens."""

from pathlib import Path

import numpy as np

from tests.support.e2e.in_process_server import connect, serving

TEXTS = ["", "bread", " \n", "\u3000"]


async def test_empty_texts_have_the_vectors_of_sentence_transformers(text_bundle: Path, text_checkpoint: Path) -> None:
    from sentence_transformers import SentenceTransformer

    expected = SentenceTransformer(str(text_checkpoint), device="cpu").encode(TEXTS)
    async with serving(text_bundle) as server, connect(server) as client:
        together = await client.encode(TEXTS)
        alone = [(await client.encode([text])).pooled for text in TEXTS]
        assert (await client.attend("")).tokens == ["[CLS]", "[SEP]"]
    np.testing.assert_allclose(together.pooled, expected, atol=1e-5)
    np.testing.assert_allclose(np.concatenate(alone), expected, atol=1e-5)
    np.testing.assert_array_equal(together.pooled[0], together.pooled[2])
