"""What can go wrong, and what to do about it: python examples/client/errors.py [host:port]."""

import sys
from collections.abc import Callable

from headwaiter_client import Client, HeadwaiterError, InvalidInput, Overloaded, RetryPolicy, Unavailable

[address] = sys.argv[1:] or ["localhost:50051"]


def attempt(call: Callable[[], object]) -> None:
    """Makes a call, and tells the kinds of failure apart."""
    try:
        call()
    except InvalidInput as error:
        print(f"mend it: sequence {error.sequence}: {error}")
    except (Overloaded, Unavailable) as error:  # The client has tried again already, as often as it may.
        print(f"try later, or another server: {type(error).__name__}: {error}")
    except HeadwaiterError as error:  # Whatever else; its request_id is in the server's log.
        print(repr(error))


patience = RetryPolicy(max_attempts=3, initial_backoff_s=0.02, max_backoff_s=2)
with Client(address) as client, Client("localhost:1", retry=patience) as lost:
    attempt(lambda: client.encode(["good", " "]))
    attempt(lambda: client.encode(["good"], model="another", request_id="my-request"))
    attempt(lambda: lost.encode(["good"]))
