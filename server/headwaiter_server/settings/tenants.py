"""Tenants: the callers that send one named token, with a share of the devices and limits of their own."""

from typing import NamedTuple

NO_LIMIT = float("inf")


class Tenant(NamedTuple):
    """The callers that send one named token.

    Attributes:
        name: the name in the file of tokens; empty for all callers without a named token.
        share: weight of the tenant's sequences; while several tenants wait, their tokens run in proportion to it.
        tokens_per_s: most tokens per second that the tenant may queue; infinity without a limit.
        queue_tokens: most tokens of the tenant that may wait in the queue of a model; infinity without a limit.
    """

    name: str = ""
    share: float = 1.0
    tokens_per_s: float = NO_LIMIT
    queue_tokens: float = NO_LIMIT


UNNAMED = Tenant()
