"""huggingface_hub's client of inference."""

from checks import check, facts, finish, near, raises
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError


def client(path, token=facts.token):
    return InferenceClient(model=facts.url + path, token=token)


@check("huggingface-hub", "`feature_extraction` of two models")
def _():
    for model, expected in (("small", facts.small_unit), ("other", facts.other_unit)):
        found = [client(f"/models/{model}/embed").feature_extraction(text).tolist()[0] for text in facts.texts]
        said = near(found, expected)
    return said


@check("huggingface-hub", "`sentence_similarity`")
def _():
    first, *others = facts.small_unit
    found = client("/models/small/similarity").sentence_similarity(facts.texts[0], other_sentences=facts.texts[1:])
    return near(found, [sum(a * b for a, b in zip(first, other, strict=True)) for other in others])


@check("huggingface-hub", "a wrong token")
def _():
    return raises(HfHubHTTPError, lambda: client("/embed", "wrong").feature_extraction("a"), "401")


finish()
