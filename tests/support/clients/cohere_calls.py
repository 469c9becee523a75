"""cohere's clients, and LangChain's on top of them."""

import cohere
from checks import check, facts, finish, near, raises, ranked
from langchain_cohere import CohereEmbeddings, CohereRerank


def v2(token=facts.token):
    return cohere.ClientV2(token, base_url=facts.url)


def v1():
    return cohere.Client(facts.token, base_url=facts.url)


@check("cohere:ClientV2", "`embed` of two models, `float`")
def _():
    for model, expected in (("small", facts.small), ("other", facts.other)):
        reply = v2().embed(model=model, texts=facts.texts, input_type="search_document", embedding_types=["float"])
        said = near(reply.embeddings.float_, expected)
    return said


@check("cohere:Client", "`embed` with the prompt of queries")
def _():
    reply = v1().embed(model="other", texts=facts.texts, input_type="search_query")
    return near(reply.embeddings, facts.other_query)


@check("cohere:ClientV2", "`rerank` with `top_n`; without a model")
def _():
    reply = v2().rerank(model="ranker", query=facts.query, documents=facts.documents, top_n=2)
    ranked([(each.index, each.relevance_score) for each in reply.results])
    reply = v2().rerank(model="", query=facts.query, documents=facts.documents)
    return ranked([(each.index, each.relevance_score) for each in reply.results])


@check("cohere:Client", "`rerank` with `return_documents`")
def _():
    reply = v1().rerank(model="ranker", query=facts.query, documents=facts.documents, return_documents=True)
    assert [each.document.text for each in reply.results] == [facts.documents[each.index] for each in reply.results]
    return ranked([(each.index, each.relevance_score) for each in reply.results])


@check("cohere:ClientV2", "a model that cannot do it")
def _():
    def call():
        v2().rerank(model="small", query=facts.query, documents=facts.documents)

    return raises(cohere.BadRequestError, call, "'ranker'")


@check("cohere:ClientV2", "a wrong token")
def _():
    def call():
        v2("wrong").rerank(model="ranker", query=facts.query, documents=facts.documents)

    return raises(cohere.UnauthorizedError, call)


@check("langchain-cohere:CohereRerank", "`rerank`")
def _():
    langchain = CohereRerank(model="ranker", cohere_api_key=facts.token, base_url=facts.url)
    results = langchain.rerank(facts.documents, facts.query, top_n=None)
    results = langchain.rerank(facts.documents, facts.query, top_n=None, max_tokens_per_doc=4096)
    return ranked([(each["index"], each["relevance_score"]) for each in results])


@check("langchain-cohere:CohereEmbeddings", "`embed_documents`, `embed_query`")
def _():
    langchain = CohereEmbeddings(
        model="other", cohere_api_key=facts.token, base_url=facts.url, user_agent="headwaiter-tests"
    )
    near(langchain.embed_query(facts.texts[0]), facts.other_query[0])
    return near(langchain.embed_documents(facts.texts), facts.other)


finish()
