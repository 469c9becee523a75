"""litellm, with the providers whose interfaces the server has."""

import litellm
from checks import check, facts, finish, near, raises, ranked

litellm.drop_params = False
litellm.suppress_debug_info = True
ROOT, V1 = facts.url, f"{facts.url}/v1"
# The model of litellm, and the address that this provider's client takes.
EMBEDDINGS = [
    ("openai/other", V1),
    ("hosted_vllm/other", V1),
    ("infinity/other", ROOT),
    ("jina_ai/other", V1),
    ("cohere/other", f"{ROOT}/v2/embed"),
    ("ollama/other", ROOT),
]
RERANKERS = [
    ("cohere/ranker", ROOT),
    # At /rerank, documents have the form of infinity.
    ("hosted_vllm/ranker", f"{ROOT}/v2"),
    ("infinity/ranker", ROOT),
    ("jina_ai/ranker", f"{V1}/rerank"),
    ("huggingface/ranker", ROOT),
]


for name, address in EMBEDDINGS:

    @check("litellm", f"`embedding` with `{name}`")
    def _(name=name, address=address):
        reply = litellm.embedding(name, facts.texts, api_base=address, api_key=facts.token)
        expected = facts.other_unit if name.startswith("ollama") else facts.other
        return near([each["embedding"] for each in reply.data], expected)


for name, address in RERANKERS:

    @check("litellm", f"`rerank` with `{name}`, `top_n`")
    def _(name=name, address=address):
        reply = litellm.rerank(name, facts.query, facts.documents, top_n=2, api_base=address, api_key=facts.token)
        return ranked([(each["index"], each["relevance_score"]) for each in reply.results])


@check("litellm", "an unknown model")
def _():
    def call():
        litellm.embedding("openai/nothing", ["a"], api_base=V1, api_key=facts.token)

    return raises(litellm.NotFoundError, call, "'small'")


@check("litellm", "a wrong token")
def _():
    def call():
        litellm.embedding("openai/small", ["a"], api_base=V1, api_key="wrong")

    return raises(litellm.AuthenticationError, call)


finish()
