"""Haystack's embedders and ranker for TEI."""

import asyncio

from checks import check, facts, finish, near, raises, ranked
from haystack import Document
from haystack.utils import Secret
from haystack_integrations.components.embedders.huggingface_api import (
    HuggingFaceAPIDocumentEmbedder,
    HuggingFaceAPITextEmbedder,
)
from haystack_integrations.components.rankers.huggingface_api import HuggingFaceTEIRanker

PACKAGE = "huggingface-api-haystack"
TOKEN = Secret.from_token(facts.token)


def options(path, token=TOKEN):
    return {"api_type": "text_embeddings_inference", "api_params": {"url": facts.url + path}, "token": token}


def ranker(token=TOKEN, **more):
    return HuggingFaceTEIRanker(url=facts.url, token=token, **more)


def results(reply):
    places = {text: index for index, text in enumerate(facts.documents)}
    return [(places[each.content], each.score) for each in reply["documents"]]


DOCUMENTS = [Document(content=text) for text in facts.documents]


@check(f"{PACKAGE}:HuggingFaceAPITextEmbedder", "the address of one of two models, `run` and `run_async`")
def _():
    for model, expected in (("small", facts.small), ("other", facts.other)):
        embedder = HuggingFaceAPITextEmbedder(**options(f"/models/{model}"))
        near(embedder.run(text=facts.texts[0])["embedding"], expected[0])
        said = near(asyncio.run(embedder.run_async(text=facts.texts[0]))["embedding"], expected[0])
    return said


@check(f"{PACKAGE}:HuggingFaceAPITextEmbedder", "`normalize`, and a text that is too long")
def _():
    embedder = HuggingFaceAPITextEmbedder(**options("/models/other"), normalize=True)
    assert embedder.run(text="a " * 1000)["embedding"]
    return near(embedder.run(text=facts.texts[0])["embedding"], facts.other_unit[0])


@check(f"{PACKAGE}:HuggingFaceAPIDocumentEmbedder", "three documents in a request")
def _():
    documents = [Document(content=text) for text in facts.texts]
    reply = HuggingFaceAPIDocumentEmbedder(**options("/models/small")).run(documents)
    return near([each.embedding for each in reply["documents"]], facts.small)


@check(f"{PACKAGE}:HuggingFaceTEIRanker", "the server's only reranker, `run`, `run_async`, `top_k`")
def _():
    ranked(results(ranker(top_k=2).run(query=facts.query, documents=DOCUMENTS)))
    return ranked(results(asyncio.run(ranker().run_async(query=facts.query, documents=DOCUMENTS))))


@check(f"{PACKAGE}:HuggingFaceTEIRanker", "a wrong token")
def _():
    return raises(
        Exception, lambda: ranker(Secret.from_token("wrong")).run(query=facts.query, documents=DOCUMENTS), "401"
    )


finish()
