"""The messages of EncodeStream in headwaiter.v1."""

from collections.abc import Awaitable, Callable

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import HeadwaiterError
from headwaiter_proto.rules.requests import check_id
from headwaiter_proto.rules.status import stream_error
from headwaiter_server.requests.call import Call
from headwaiter_server.requests.request_path import ReserveBytes
from headwaiter_server.rpc.parsing import parse_request
from headwaiter_server.rpc.wire_format import field_tag

# Returns a serialised EncodeResponse.
Encode = Callable[[pb.EncodeRequest, Call, ReserveBytes], Awaitable[bytes]]


class EncodeStream:
    """Reads EncodeRequests, and writes EncodeStreamResponses.

    Args:
        encode: answers a request.
        max_sequences: maximum number of sequences of a request.
    """

    in_order = False
    unique_ids = True

    def __init__(self, encode: Encode, max_sequences: int) -> None:
        self._encode, self._max_sequences = encode, max_sequences

    async def parse(self, raw: bytes) -> pb.EncodeRequest:
        """Return a request."""
        return await parse_request(raw, pb.EncodeRequest(), self._max_sequences)

    def id_of(self, request: pb.EncodeRequest) -> str:
        """Return the id of a request."""
        check_id(request.request_id)
        return request.request_id

    async def answer(self, request: pb.EncodeRequest, call: Call, reserve: ReserveBytes) -> bytes:
        """Return the answer to a request."""
        response = await self._encode(request, call, reserve)
        # Append the serialised response as a field, instead of parsing and copying it.
        head = pb.EncodeStreamResponse(request_id=call.request_id).SerializeToString()
        return b"".join((head, field_tag(pb.EncodeStreamResponse.RESPONSE_FIELD_NUMBER, len(response)), response))

    def failure(self, request: pb.EncodeRequest, call: Call, error: HeadwaiterError) -> bytes:
        """Return the answer to a request that failed."""
        return pb.EncodeStreamResponse(request_id=request.request_id, error=stream_error(error)).SerializeToString()
