"""A test of code that calls a server, without one: python examples/client/fake.py."""

from headwaiter_client import Client, FakeEncoder, Overloaded


def nearest(client: Client, texts: list[str], query: str) -> str | None:
    """Finds the text nearest to a query; None when the server is busy. Stands for your own code."""
    try:
        pooled = client.encode([query, *texts]).pooled
    except Overloaded:
        return None
    assert pooled is not None
    return texts[int((pooled[1:] @ pooled[0]).argmax())]


fake = FakeEncoder()  # Vectors of texts that share words are near each other.
client = Client(transport=fake)

assert nearest(client, ["the cat sat", "a dog barked"], "the cat") == "the cat sat"
assert [len(request.texts.values) for request in fake.requests] == [3]

fake.errors.append(Overloaded("the queue is full"))
assert nearest(client, ["the cat sat", "a dog barked"], "the cat") is None
print("both tests pass")
