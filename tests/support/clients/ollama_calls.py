"""ollama's client, LangChain's on top of it, and infinity's client."""

import ollama
from checks import check, facts, finish, near, raises, ranked
from infinity_client import Client
from infinity_client.api.default import embeddings, rerank
from infinity_client.models import OpenAIEmbeddingInputText, RerankInput
from langchain_ollama import OllamaEmbeddings

HEADERS = {"Authorization": f"Bearer {facts.token}"}


def client(headers=HEADERS):
    return ollama.Client(facts.url, headers=headers)


@check("ollama", "`embed` of two models, `list`")
def _():
    for model, expected in (("small", facts.small_unit), ("other", facts.other_unit)):
        said = near([list(each) for each in client().embed(model, facts.texts).embeddings], expected)
    assert [each.model for each in client().list().models] == ["small", "labels", "other", "ranker"]
    return said


@check("ollama", "an unknown model; a wrong token")
def _():
    raises(ollama.ResponseError, lambda: client().embed("nothing", "a"), "'small'")
    wrong = {"Authorization": "Bearer wrong"}
    return raises(ollama.ResponseError, lambda: client(wrong).embed("small", "a"), "401")


@check("langchain-ollama", "`embed_documents`, `embed_query`")
def _():
    langchain = OllamaEmbeddings(model="other", base_url=facts.url, client_kwargs={"headers": HEADERS})
    near(langchain.embed_query(facts.texts[0]), facts.other_unit[0])
    return near(langchain.embed_documents(facts.texts), facts.other_unit)


@check("infinity-client", "`embeddings`")
def _():
    body = OpenAIEmbeddingInputText(input_=facts.texts, model="other")
    reply = embeddings.sync_detailed(client=Client(facts.url, headers=HEADERS), body=body)
    return near([each.embedding for each in reply.parsed.data], facts.other)


@check("infinity-client", "`rerank`")
def _():
    body = RerankInput(query=facts.query, documents=facts.documents, model="ranker")
    reply = rerank.sync_detailed(client=Client(facts.url, headers=HEADERS), body=body)
    return ranked([(each.index, each.relevance_score) for each in reply.parsed.results])


finish()
