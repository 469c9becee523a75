"""A Router of `sentence-transformers` gives queries and documents to different modules: each route is one bundle."""

import json
from pathlib import Path

import numpy as np
import pytest

from headwaiter_export.checkpoints.reader import read_checkpoint
from headwaiter_export.encoder.reference import concatenate, run_in_pytorch
from tests.export.conftest import Refused
from tests.support.checkpoints import save_bert, save_sentence_transformer, save_tokenizer, write_json
from tests.support.export.helpers import assert_checkpoint_refused, assert_close_to_scale, edit_json, token_ids
from tests.support.export.sparse_encoder import TEXTS, save_sparse_encoder
from tests.support.oracle import Array

pytestmark = pytest.mark.filterwarnings("ignore")


def vectors(folder: Path, route: str, prompt: str = "") -> Array:
    """Return the vectors that the export of a route gives for `TEXTS`, with a prompt before each."""
    loaded = read_checkpoint(folder, route=route)
    ids = token_ids(loaded, [prompt + text for text in TEXTS])
    pooled = concatenate(run_in_pytorch(loaded.encoder, ids)).pooled
    assert pooled is not None
    return pooled


@pytest.fixture
def dense_folder(tmp_path: Path) -> Path:
    """Two encoders, one for queries and one for documents, with a Normalize after the Router."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Router
    from sentence_transformers.sentence_transformer.modules import Normalize

    parts = []
    for name, layers in (("query", 1), ("document", 2)):
        folder = tmp_path / name
        folder.mkdir()
        save_bert(folder, num_hidden_layers=layers)
        save_tokenizer(folder)
        save_sentence_transformer(folder, modules=("Transformer", "Pooling"))
        parts.append(list(SentenceTransformer(str(folder), device="cpu").children()))
    routed = SentenceTransformer(modules=[Router.for_query_document(*parts), Normalize()], device="cpu")
    routed.save_pretrained(str(tmp_path / "routed"))
    return tmp_path / "routed"


def test_each_route_gives_the_vectors_of_sentence_transformers(dense_folder: Path) -> None:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(dense_folder), device="cpu")
    queries, documents = model.encode_query(TEXTS), model.encode_document(TEXTS)
    assert np.abs(queries - documents).max() > 0.1
    assert_close_to_scale(vectors(dense_folder, "query"), queries)
    assert_close_to_scale(vectors(dense_folder, "document"), documents)
    assert read_checkpoint(dense_folder, route="document").encoder.config.layers == 2


def test_the_prompt_of_a_route_is_its_default(dense_folder: Path) -> None:
    from sentence_transformers import SentenceTransformer

    prompts = {"query": "rain on ", "passage": "the "}
    path = dense_folder / "config_sentence_transformers.json"
    edit_json(path, prompts=prompts, default_prompt_name="query")
    model = SentenceTransformer(str(dense_folder), device="cpu")
    for route, encode in (("query", model.encode_query), ("document", model.encode_document)):
        text = read_checkpoint(dense_folder, route=route).text
        assert text is not None
        prompt = {"": "", **prompts}[text.default_prompt]
        assert_close_to_scale(vectors(dense_folder, route, prompt), encode(TEXTS))


def test_documents_of_a_sparse_encoder_need_no_model_for_queries(tmp_path: Path) -> None:
    from sentence_transformers import SparseEncoder
    from sentence_transformers.base.modules import Router
    from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding

    save_sparse_encoder(tmp_path)
    documents = SparseEncoder(str(tmp_path), device="cpu")
    router = Router.for_query_document([SparseStaticEmbedding(documents.tokenizer)], list(documents.children()))
    folder = tmp_path / "routed"
    SparseEncoder(modules=[router], device="cpu").save_pretrained(str(folder))
    expected = SparseEncoder(str(folder), device="cpu").encode_document(TEXTS).to_dense().numpy()
    assert_close_to_scale(vectors(folder, "document"), expected)
    assert_checkpoint_refused(folder, "SparseStaticEmbedding", route="query")


def test_the_command_takes_a_route(dense_folder: Path, refused: Refused) -> None:
    refused(["checkpoint", dense_folder], "--route")
    refused(["checkpoint", dense_folder, "--route", "passage"], "'passage'")


def test_a_route_must_be_chosen_among_those_of_the_router(dense_folder: Path) -> None:
    assert_checkpoint_refused(dense_folder, "router_config.json", "query, document")
    assert_checkpoint_refused(dense_folder, "router_config.json", "query, document", "'passage'", route="passage")


def test_a_route_that_the_export_cannot_compute_is_named(dense_folder: Path) -> None:
    path = dense_folder / "router_config.json"
    settings = json.loads(path.read_text())
    write_json(path, settings | {"structure": {"document": settings["structure"]["document"][:1]}})
    assert_checkpoint_refused(
        dense_folder, "'document'", "router_config.json", "Transformer, Normalize", route="document"
    )


def test_a_router_after_other_modules_is_refused(dense_folder: Path) -> None:
    path = dense_folder / "modules.json"
    write_json(path, json.loads(path.read_text())[::-1])
    assert_checkpoint_refused(dense_folder, "modules.json", "begin", route="document")


def test_a_checkpoint_without_a_router_has_no_route(tmp_path: Path) -> None:
    save_bert(tmp_path)
    assert_checkpoint_refused(tmp_path, "modules.json", route="query")
    save_sentence_transformer(tmp_path)
    assert_checkpoint_refused(tmp_path, "modules.json", "Router", route="query")


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"structure": {}}, "structure"),
        ({"structure": {"document": []}}, "structure"),
        ({"structure": {"document": ["missing"]}}, "structure"),
        ({"structure": ["document"]}, "structure"),
        ({"types": ["document"]}, "types"),
        ({"other": 1}, "other"),
    ],
)
def test_a_malformed_router_is_refused(changes: dict[str, object], fact: str, dense_folder: Path) -> None:
    edit_json(dense_folder / "router_config.json", **changes)
    assert_checkpoint_refused(dense_folder, "router_config.json", fact, route="document")


@pytest.mark.parametrize("kind", ["custom_st.Transformer", "pylate.models.Dense"])
def test_a_route_with_code_of_its_own_is_refused(kind: str, dense_folder: Path) -> None:
    path = dense_folder / "router_config.json"
    settings = json.loads(path.read_text())
    write_json(path, settings | {"types": dict.fromkeys(settings["types"], kind)})
    assert_checkpoint_refused(dense_folder, "router_config.json", kind, route="document")


def test_the_modules_of_a_route_are_inside_the_checkpoint(dense_folder: Path) -> None:
    kind = "sentence_transformers.base.modules.transformer.Transformer"
    edit_json(dense_folder / "router_config.json", types={"../query": kind}, structure={"document": ["../query"]})
    assert_checkpoint_refused(dense_folder, "router_config.json", "outside", route="document")
