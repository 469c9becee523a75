"""Calls with requests that the client would refuse or split, for tests of the server's own errors."""

from collections.abc import Callable

import grpc
from google.protobuf.message import Message

from headwaiter_client import Client
from headwaiter_proto import encoder_pb2 as pb


class Caller:
    """Calls one server with the client, or with messages that the client itself would refuse or split."""

    def __init__(self, address: str) -> None:
        self.client = Client(address, timeout_s=10)
        self._channel = grpc.insecure_channel(address)

    def send(self, message: Message, method: str = "Encode") -> None:
        call: Callable[..., bytes] = self._channel.unary_unary(f"/headwaiter.v1.Encoder/{method}")
        call(message.SerializeToString(), timeout=10)

    def close(self) -> None:
        self.client.close()
        self._channel.close()


def tokens(lengths: list[int], ids: int | None = None) -> pb.EncodeRequest:
    """Return a request with sequences of these lengths; `ids` overrides the number of ids in the data."""
    data = bytes(4 * (sum(lengths) if ids is None else ids))
    return pb.EncodeRequest(tokens=pb.TokenSequences(dtype=pb.DATA_TYPE_INT32, data=data, lengths=lengths))
