"""Test your own code without a server: with random vectors, with chosen vectors, and with an error. Prints the result.

Run: python examples/client/fake.py
"""

from headwaiter_client import Client, FakeEncoder, Overloaded


def nearest(client: Client, texts: list[str], query: str) -> str | None:
    """Return the text nearest to a query, or None if the server is overloaded. Stands for your own code."""
    try:
        pooled = client.encode([query, *texts]).pooled
    except Overloaded:
        return None
    return texts[int((pooled[1:] @ pooled[0]).argmax())]


# Without `vectors`, the vectors are random; texts that share words have similar vectors.
fake = FakeEncoder()
client = Client(transport=fake)
assert nearest(client, ["the cat sat", "a dog barked"], "the cat") == "the cat sat"
assert [len(request.texts.values) for request in fake.requests] == [3]

# Each error in `errors` fails one call.
fake.errors.append(Overloaded("the queue is full"))
assert nearest(client, ["the cat sat", "a dog barked"], "the cat") is None

# A function computes the vectors, for tests that need known results.
chosen: dict[str, list[float]] = {"a kitten": [1, 0], "the cat sat": [0.9, 0.1], "a dog barked": [0, 1]}
client = Client(transport=FakeEncoder(width=2, vectors=lambda text: chosen[text]))
assert nearest(client, ["a dog barked", "the cat sat"], "a kitten") == "the cat sat"
print("all tests pass")
