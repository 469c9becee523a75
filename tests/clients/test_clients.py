"""Unmodified clients of other servers, each in an environment of its own, reach each of four models over TLS."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch
import transformers
import trustme

from headwaiter_client import AsyncClient, TlsConfig
from tests.support.checkpoints import VOCABULARY, randomize, save_sentence_transformer, save_tokenizer, write_json
from tests.support.documents import ROOT
from tests.support.e2e.exported import export_checkpoint
from tests.support.e2e.in_process_server import serving
from tests.support.open_inference.separate_environment import package_python, run_program
from tests.support.shared_folders import SharedFolders

pytestmark = [pytest.mark.exhaustive, pytest.mark.asyncio(loop_scope="module")]

SCRIPTS = {
    "openai_calls": ["openai==3.57.0", "langchain-openai==1.7.4"],
    "cohere_calls": ["cohere==5.21.1", "langchain-cohere==0.6.0"],
    "litellm_calls": ["litellm==1.110.2"],
    "haystack_calls": ["haystack-ai==3.4.1", "huggingface-api-haystack==3.1.0"],
    "llama_index_calls": ["llama-index-embeddings-text-embeddings-inference==0.6.0"],
    "ollama_calls": ["ollama==0.6.3", "langchain-ollama==1.1.0", "infinity-client==0.0.78"],
    "huggingface_calls": ["huggingface-hub==2.4.0", "numpy"],
}
# The class of transformers, the number of labels, and the seed of the weights of each model.
MODELS = {
    "small": ("BertModel", 0, 1),
    "other": ("BertModel", 0, 2),
    "ranker": ("BertForSequenceClassification", 1, 3),
    "labels": ("BertForSequenceClassification", 3, 4),
}
TOKEN = "s3cret"
# Not whether each body that fits its schema is answered: a schema cannot say that two fields contradict each other.
# A request may have a time limit of 1e-300 s, whose status is 504. The server refuses to load models, with 501.
EXPECTED = """
[checks]
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", 501, 504]
"""
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
TEXTS = ["fresh bread", "rain falls on stone", "a table for two"]
QUERY = "rain on bread"
DOCUMENTS = ["the rain falls on stone", "fresh bread", "a table for two please", "bread is fresh on the table"]


@dataclass(frozen=True)
class Served:
    """A server: the file of its facts, and the file of the authority of its certificate."""

    facts: Path
    authority: Path


def export(folder: Path, checkpoint: Path, kind: str, labels: int, seed: int) -> None:
    """Write a bundle of a tiny BERT with random weights."""
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2}
    sizes |= {"intermediate_size": 64, "vocab_size": len(VOCABULARY), "max_position_embeddings": 40}
    config = transformers.BertConfig(**sizes, **({"num_labels": labels} if labels else {}))
    model = getattr(transformers, kind)(config).eval()
    randomize(model)
    model.save_pretrained(checkpoint)
    save_tokenizer(checkpoint)
    if labels:
        write_json(checkpoint / "tokenizer_config.json", {"model_max_length": 32})
    else:
        save_sentence_transformer(checkpoint, modules=("Transformer", "Pooling"))
    export_checkpoint(checkpoint, folder, "bundle")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(
    shared_folders: SharedFolders,
    tmp_path_factory: pytest.TempPathFactory,
    runs_graphs: None,
    runs_transformers: None,
    starts_processes: None,
) -> AsyncIterator[Served]:
    """A server of four models with a certificate and a token."""
    folder = tmp_path_factory.mktemp("clients")
    for name, (kind, labels, seed) in MODELS.items():
        checkpoint = tmp_path_factory.mktemp("checkpoint")
        bundle = shared_folders.get(
            f"client-{name}",
            lambda to, c=checkpoint, k=kind, n=labels, s=seed: export(to, c, k, n, s),  # type: ignore[misc]
        )
        (folder / "models" / name).mkdir(parents=True)
        (folder / "models" / name / "1").symlink_to(bundle)
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    certificate.private_key_pem.write_to_path(folder / "key.pem")
    with (folder / "cert.pem").open("wb") as file:
        file.writelines(part.bytes() for part in certificate.cert_chain_pems)
    (folder / "token").write_text(TOKEN)
    settings = {
        "models": folder / "models",
        "default_model": "small",
        "http_api": "on",
        "http_address": "127.0.0.1:0",
        "tls_cert": folder / "cert.pem",
        "tls_key": folder / "key.pem",
        "token_file": folder / "token",
    }
    async with serving(None, **settings) as server:
        tls = TlsConfig(ca=folder / "ca.pem")
        async with AsyncClient(f"localhost:{server.port}", tls=tls, token=TOKEN) as client:
            facts = {"url": f"https://localhost:{server.http_port}", "token": TOKEN, **await facts_of(client)}
        (folder / "facts.json").write_text(json.dumps(facts))
        yield Served(folder / "facts.json", folder / "ca.pem")


async def facts_of(client: AsyncClient) -> dict[str, Any]:
    """Return what gRPC answers."""
    facts: dict[str, Any] = {"texts": TEXTS, "query": QUERY, "documents": DOCUMENTS}
    for model in ("small", "other"):
        vectors = (await client.encode(TEXTS, model=model)).pooled
        facts[model] = vectors.tolist()
        facts[f"{model}_unit"] = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).tolist()
    facts["other_query"] = (await client.encode(TEXTS, model="other", prompt="query")).pooled.tolist()
    ranking = await client.rerank(QUERY, DOCUMENTS, model="ranker")
    facts["scores"] = [each.score for each in sorted(ranking.documents, key=lambda each: each.index)]
    result = await client.classify(TEXTS, model="labels")
    facts["probabilities"] = [list(map(float, row)) for row in result.scores]
    return facts


@pytest.mark.parametrize("script", SCRIPTS)
async def test_a_client_works_unmodified(
    script: str, served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = await asyncio.to_thread(package_python, tmp_path / "environment", *SCRIPTS[script])
    code, table = await run(served, python, ROOT / "tests" / "support" / "clients" / f"{script}.py", served.facts)
    with capsys.disabled():
        print(f"\n{table}")
    assert code == 0, table


# Longer: schemathesis run URL/openapi.json --max-examples 2000. It takes five minutes on two slow cores.
@pytest.mark.timeout(900)
async def test_a_fuzzer_that_reads_the_description_finds_no_answer_that_differs(
    served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = await asyncio.to_thread(package_python, tmp_path / "environment", "schemathesis==4.32.5")
    url = json.loads(served.facts.read_text())["url"]
    config = tmp_path / "schemathesis.toml"
    config.write_text(EXPECTED)
    code, report = await run(
        served,
        python.with_name("schemathesis"),
        *("--config-file", config, "run", f"{url}/openapi.json", "--header", f"Authorization: Bearer {TOKEN}"),
        *("--checks", CHECKS, "--max-examples", "40", "--seed", "1", "--workers", "1"),
    )
    assert code == 0, report


async def run(served: Served, *command: object) -> tuple[int | None, str]:
    """Run a command that trusts the server's certificate; return its exit status and what it printed."""
    trusted = dict.fromkeys(("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"), str(served.authority))
    folder = served.facts.parent  # schemathesis leaves files in its folder.
    return await run_program(*command, folder=folder, **trusted, LITELLM_LOCAL_MODEL_COST_MAP="True")
