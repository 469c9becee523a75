"""A served model of several vectors for each text gives those of `sentence-transformers`, over gRPC and HTTP."""

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from headwaiter_server.runtime.bundle import Bundle
from headwaiter_server.runtime.errors import BundleRefused
from tests.support.e2e.exported import export_checkpoint
from tests.support.e2e.in_process_server import connect, post, serving
from tests.support.e2e.open_inference_caller import calling, raw_request
from tests.support.export.multi_vector_encoder import DOCUMENTS, QUERIES, expected_vectors, save_multi_vector_encoder
from tests.support.oracle import Array
from tests.support.shared_folders import SharedFolders
from tests.support.tiers import exhaustive

pytestmark = [pytest.mark.filterwarnings("ignore")]
MASK_TOKENS = 12


@pytest.fixture(scope="module")
def checkpoint(shared_folders: SharedFolders) -> Path:
    """A folder with the checkpoint and its bundle."""
    pytest.importorskip("sentence_transformers")

    def write(folder: Path) -> None:
        folder.mkdir()
        save_multi_vector_encoder(folder / "checkpoint")
        export_checkpoint(folder / "checkpoint", folder / "bundle", "colbert", attends=True)

    return shared_folders.get("multi-vector-encoder", write)


@pytest.fixture
def expected(checkpoint: Path) -> tuple[list[Array], list[Array]]:
    """The vectors of queries and documents in `sentence-transformers`."""
    return expected_vectors(checkpoint / "checkpoint")


def assert_equal(actual: list[Array], expected: list[Array]) -> None:
    assert [len(each) for each in actual] == [len(each) for each in expected]
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)


@pytest.mark.parametrize("front_ends", [0, *exhaustive(1)])
async def test_the_client_gets_the_vectors_of_texts(
    front_ends: int, checkpoint: Path, expected: tuple[list[Array], list[Array]]
) -> None:
    queries, documents = expected
    async with serving(checkpoint / "bundle", front_ends=front_ends) as server, connect(server) as client:
        encoded = await client.encode(QUERIES, prompt="query", truncation="right")
        assert_equal(encoded.hidden, queries)
        assert encoded.lengths.tolist() == [MASK_TOKENS] * len(QUERIES)
        for prompt in ("document", ""):
            found = await client.encode(DOCUMENTS, prompt=prompt, offsets=True)
            assert_equal(found.hidden, documents)
            # The tokens of punctuation have neither a vector nor a position.
            for text, rows, offsets in zip(DOCUMENTS, found.hidden, found.offsets, strict=True):
                assert len(rows) == len(offsets)
                assert not set("".join(text[begin:end] for begin, end in offsets.tolist())) & set(",.!")
        # The token of ".".
        assert found.lengths[0] == len(found.hidden[0]) + 1
        (alone,) = (await client.encode([QUERIES[0]], prompt="query")).hidden
        np.testing.assert_array_equal(alone, encoded.hidden[0])
        coarse = await client.encode(DOCUMENTS, hidden_dtype="int8")
        np.testing.assert_allclose(np.concatenate(coarse.hidden), np.concatenate(documents), atol=0.02)
        model = await client.model()
        assert (model.width, model.hidden_width) == (12, 12)


def test_a_lower_limit_of_the_server_holds_for_prompts_too(checkpoint: Path) -> None:
    bundle = Bundle.open(checkpoint / "bundle")
    bundle.limit_tokens(MASK_TOKENS)
    assert [each.max_tokens for each in bundle.manifest.prompts if each.name == "query"] == [MASK_TOKENS]
    with pytest.raises(BundleRefused, match="max-sequence-tokens 11"):
        bundle.limit_tokens(MASK_TOKENS - 1)


async def test_the_rows_and_their_count_agree_over_the_open_inference_protocol(checkpoint: Path) -> None:
    request = raw_request("colbert", ("hidden", "token_count"), DOCUMENTS)
    async with serving(checkpoint / "bundle") as server, connect(server) as client, calling(server) as caller:
        expected = (await client.encode(DOCUMENTS)).hidden
        answer = await caller.infer(request)
    assert answer["token_count"].tolist() == [len(rows) for rows in expected]
    for rows, each in zip(answer["hidden"], expected, strict=True):
        np.testing.assert_array_equal(rows[: len(each)], each)
        assert not rows[len(each) :].any()


async def test_no_token_attends_to_the_masks_of_a_query(checkpoint: Path) -> None:
    async with serving(checkpoint / "bundle") as server, connect(server) as client:
        tokenizer = Tokenizer.from_file(str(checkpoint / "bundle" / "tokenizer.json"))
        ids = tokenizer.encode("[Q] the [MASK] on").ids + tokenizer.encode("[MASK]" * 3, add_special_tokens=False).ids
        weights = (await client.attend(ids)).weights
        assert not weights[..., -3:].any()
        assert weights[..., :-3].all()
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)


async def test_http_gives_the_vectors_of_texts(checkpoint: Path, expected: tuple[list[Array], list[Array]]) -> None:
    texts, rows = (
        [text for text in DOCUMENTS if text],
        [rows for text, rows in zip(DOCUMENTS, expected[1], strict=True) if text],
    )
    async with serving(checkpoint / "bundle", http_api="on") as server:
        found = await post(server, "/embed_all", inputs=texts)
        assert_equal([np.array(each) for each in found], rows)
        query = await post(server, "/embed_all", inputs=QUERIES[:1], prompt_name="query")
        assert_equal([np.array(each) for each in query], expected[0][:1])
