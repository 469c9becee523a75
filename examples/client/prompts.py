"""Prompts that the checkpoint puts before queries and passages: python examples/client/prompts.py [host:port]."""

import sys

from headwaiter_client import Client

[address] = sys.argv[1:] or ["localhost:50051"]
text = "fresh bread"

with Client(address) as client:
    model = client.model()
    print(f"{len(model.prompts)} prompts; unless asked for another, texts have {model.default_prompt or 'none'}")
    for prompt in model.prompts:
        encoding = client.encode([text], prompt=prompt.name)
        print(f"{prompt.name}: {prompt.text + text!r} has {encoding.lengths[0]} tokens")
