"""Handle errors. Prints what to do about three kinds: a wrong request, an unknown model, an unreachable server.

Run: python examples/client/errors.py [host:port]
"""

import sys
from collections.abc import Callable

from headwaiter_client import Client, HeadwaiterError, InvalidInput, Overloaded, RetryPolicy, Unavailable

[address] = sys.argv[1:] or ["localhost:50051"]


def attempt(call: Callable[[], object]) -> None:
    """Make a call, and print what to do if the call fails."""
    try:
        call()
    except InvalidInput as error:
        print(f"correct the request: sequence {error.sequence}: {error}")
    except (Overloaded, Unavailable) as error:  # The client has already retried as often as its RetryPolicy allows.
        print(f"try later, or try another server: {type(error).__name__}: {error}")
    except HeadwaiterError as error:  # All other errors; the server's log has a line with the same request_id.
        print(repr(error))


policy = RetryPolicy(max_attempts=3, initial_backoff_s=0.02, max_backoff_s=2)
with Client(address) as client, Client("localhost:1", retry=policy) as unreachable:
    attempt(lambda: client.encode(["good", "too long " * 150]))
    attempt(lambda: client.encode(["good"], model="another", request_id="my-request"))
    attempt(lambda: unreachable.encode(["good"]))
