"""Describe the server's models. Prints each model's shape, its limits, and its difference from PyTorch.

Run: python examples/client/models.py [host:port]
"""

import sys

from headwaiter_client import Client

[address] = sys.argv[1:] or ["localhost:50051"]

with Client(address) as client:
    models = [client.model(listed.name) for listed in client.models()]  # Without a name: the server's only model.

for model in models:
    print(f"{model.model.name} {model.model.digest[:12]}: {model.layers} layers, {model.heads} heads")
    print(f"a vector: {model.width} numbers, {'of' if model.normalized else 'not of'} unit length")
    if model.takes_texts:
        print(f"a text: at most {model.max_text_tokens} tokens, including special tokens")
    print(f"a sequence of token ids or features: {model.min_tokens} to {model.max_tokens} tokens")
    # This client splits lists to fit these limits. A program that calls gRPC directly must split lists itself.
    limits = model.limits
    print(f"a request: at most {limits.max_sequences} sequences, {limits.max_tokens} tokens")
    print(f"a message: at most {limits.max_message_bytes} bytes, including at most {limits.max_text_bytes} of texts")
    check = model.execution.self_check
    difference = f"differs from PyTorch by at most {check.hidden_max_abs:.0e} on {check.sequences} golden inputs"
    print(f"on {model.execution.provider}: {difference}")
