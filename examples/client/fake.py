"""Test your own code without a server. Prints that both tests pass.

Run: python examples/client/fake.py
"""

from headwaiter_client import Client, FakeEncoder, Overloaded


def nearest(client: Client, texts: list[str], query: str) -> str | None:
    """Return the text nearest to a query, or None if the server is overloaded. Stands for your own code."""
    try:
        pooled = client.encode([query, *texts]).pooled
    except Overloaded:
        return None
    assert pooled is not None
    return texts[int((pooled[1:] @ pooled[0]).argmax())]


fake = FakeEncoder()  # Texts that share words get similar vectors.
client = Client(transport=fake)

assert nearest(client, ["the cat sat", "a dog barked"], "the cat") == "the cat sat"
assert [len(request.texts.values) for request in fake.requests] == [3]

fake.errors.append(Overloaded("the queue is full"))
assert nearest(client, ["the cat sat", "a dog barked"], "the cat") is None
print("both tests pass")
