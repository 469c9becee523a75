"""LlamaIndex's embeddings for TEI."""

import asyncio

from checks import check, facts, finish, near, raises
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference

PACKAGE = "llama-index-embeddings-text-embeddings-inference"


def model(name, token=facts.token):
    return TextEmbeddingsInference(model_name=name, base_url=f"{facts.url}/models/{name}", auth_token=token)


@check(PACKAGE, "the address of each of two models, texts and queries")
def _():
    for name, expected in (("small", facts.small_unit), ("other", facts.other_unit)):
        near(model(name).get_query_embedding(facts.texts[0]), expected[0])
        near(asyncio.run(model(name).aget_text_embedding_batch(facts.texts)), expected)
        said = near(model(name).get_text_embedding_batch(facts.texts), expected)
    return said


@check(PACKAGE, "an unknown model, a wrong token: the client does not look at the status")
def _():
    raises(Exception, lambda: model("nothing").get_text_embedding("a"))
    return raises(Exception, lambda: model("small", "wrong").get_text_embedding("a"))


finish()
