"""What a server holds, what it takes, and how it runs: python examples/client/models.py [host:port]."""

import sys

from headwaiter_client import Client

[address] = sys.argv[1:] or ["localhost:50051"]

with Client(address) as client:
    models = [client.model(held.name) for held in client.models()]  # A server's only model needs no name.

for model in models:
    print(f"{model.model.name} {model.model.digest[:12]}: {model.layers} layers, {model.heads} heads")
    print(f"a vector: {model.width} numbers, {'of' if model.normalized else 'not of'} unit length")
    if model.takes_texts:
        print(f"a text: at most {model.max_text_tokens} tokens, special ones included")
    print(f"a sequence of ids or features: {model.min_tokens} to {model.max_tokens} tokens")
    # The client cuts lists to fit; those who speak gRPC without it have to.
    limits = model.limits
    print(f"a request: at most {limits.max_sequences} sequences, {limits.max_tokens} tokens")
    print(f"a message: at most {limits.max_message_bytes} bytes, of which {limits.max_text_bytes} of texts")
    check = model.execution.self_check
    print(f"on {model.execution.provider}, within {check.hidden_max_abs:.0e} of PyTorch on {check.sequences} sequences")
