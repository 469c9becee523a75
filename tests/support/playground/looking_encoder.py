"""A fake server whose heads look where a test wants."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from headwaiter_client import FakeEncoder
from headwaiter_proto import encoder_pb2 as pb

# The strong weights of a head: from the token at one position to the token at another.
Looks = Mapping[tuple[int, int], Mapping[tuple[int, int], float]]


class LookingEncoder(FakeEncoder):
    """A FakeEncoder with chosen weights; the rest of a row is shared among the other tokens.

    Args:
        looks: the chosen weights, by layer and head, and then by query and key.
        options: those of `FakeEncoder`.
    """

    def __init__(self, looks: Looks, **options: Any) -> None:
        super().__init__(**options)
        self._looks = looks

    def unary(self, method: str, request: bytes, *others: Any) -> bytes:
        """Answer a call."""
        answer = super().unary(method, request, *others)
        if not method.endswith("/Attend"):
            return answer
        asked, reply = pb.AttendRequest.FromString(request), pb.AttendResponse.FromString(answer)
        weights = np.frombuffer(reply.weights.data, np.float32).reshape(reply.weights.shape).copy()
        for i, layer in enumerate(asked.layers):
            for j, head in enumerate(asked.heads):
                for (query, key), weight in self._looks.get((layer, head), {}).items():
                    weights[i, j, query] = (1 - weight) / (weights.shape[-1] - 1)
                    weights[i, j, query, key] = weight
        reply.weights.data = weights.tobytes()
        return reply.SerializeToString()
