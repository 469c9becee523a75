"""openai's clients, and LangChain's on top of them."""

import asyncio

import openai
from checks import check, facts, finish, near, raises
from langchain_openai import OpenAIEmbeddings


def client(token=facts.token, base_url="/v1", **options):
    return openai.OpenAI(base_url=facts.url + base_url, api_key=token, max_retries=0, **options)


def vectors(reply):
    return [each.embedding for each in reply.data]


@check("openai", "two models by name, `float` and `base64`")
def _():
    for encoding in ({}, {"encoding_format": "float"}):
        near(vectors(client().embeddings.create(model="other", input=facts.texts, **encoding)), facts.other)
    return near(vectors(client().embeddings.create(model="small", input=facts.texts)), facts.small)


@check("openai", "`base_url` with `/models/other`")
def _():
    reply = client(base_url="/models/other/v1").embeddings.create(model="other", input=facts.texts)
    assert reply.model == "other"
    return near(vectors(reply), facts.other)


@check("openai", "`models.list` and `models.retrieve`")
def _():
    assert [each.id for each in client().models.list()] == ["small", "labels", "other", "ranker"]
    return f"four models; `{client().models.retrieve('small').id}`"


@check("openai", "an unknown model")
def _():
    def call():
        client().embeddings.create(model="nothing", input="a")

    return raises(openai.NotFoundError, call, "'small'")


@check("openai", "a text that is too long")
def _():
    def call():
        client().embeddings.create(model="small", input=["a", "a " * 1000])

    return raises(openai.BadRequestError, call, "sequence 1")


@check("openai", "a model that cannot do it")
def _():
    def call():
        client().post("/rerank", body={"model": "small", "query": "q", "documents": ["a"]}, cast_to=object)

    return raises(openai.BadRequestError, call, "'ranker'")


@check("openai", "`post` to `/classify`, by name and without a name")
def _():
    for model in ({"model": "labels"}, {}):
        reply = client().post("/classify", body={"input": facts.texts, **model}, cast_to=object)
        said = near([each["probs"] for each in reply["data"]], facts.probabilities)
    return said


@check("openai", "a wrong token")
def _():
    return raises(openai.AuthenticationError, client("wrong").models.list)


@check("openai:AzureOpenAI", "a deployment by name, header `api-key`")
def _():
    azure = openai.AzureOpenAI(azure_endpoint=facts.url, api_key=facts.token, api_version="2024-10-21")
    return near(vectors(azure.embeddings.create(model="other", input=facts.texts)), facts.other)


@check("openai:AsyncOpenAI", "three calls at once")
def _():
    async def call():
        async with openai.AsyncOpenAI(base_url=f"{facts.url}/v1", api_key=facts.token) as several:
            calls = [several.embeddings.create(model="small", input=text) for text in facts.texts]
            return [vectors(reply)[0] for reply in await asyncio.gather(*calls)]

    return near(asyncio.run(call()), facts.small)


@check("langchain-openai", "`embed_documents`, `embed_query`, `dimensions`")
def _():
    options = {"base_url": f"{facts.url}/v1", "api_key": facts.token, "check_embedding_ctx_length": False}
    langchain = OpenAIEmbeddings(model="other", **options)
    near(langchain.embed_query(facts.texts[0]), facts.other[0])
    assert len(OpenAIEmbeddings(model="other", dimensions=3, **options).embed_query("a")) == 3
    return near(langchain.embed_documents(facts.texts), facts.other)


finish()
