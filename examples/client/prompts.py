"""Use the prompts of a checkpoint, such as "query" and "passage". Prints each prompt and its token count.

Run: python examples/client/prompts.py [host:port]
"""

import sys

from headwaiter_client import Client

[address] = sys.argv[1:] or ["localhost:50051"]
text = "fresh bread"

with Client(address) as client:
    model = client.model()
    print(f"{len(model.prompts)} prompts; the default prompt is {model.default_prompt or 'empty'}")
    for prompt in model.prompts:
        encoding = client.encode([text], prompt=prompt.name)
        print(f"{prompt.name}: {prompt.text + text!r} has {encoding.lengths[0]} tokens")
