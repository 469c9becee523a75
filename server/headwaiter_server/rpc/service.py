"""The Encoder service: the methods of headwaiter.v1.Encoder over gRPC."""

from collections.abc import Awaitable, Callable
from functools import partial

import grpc

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import HeadwaiterError
from headwaiter_proto.rules.requests import check_id
from headwaiter_proto.rules.status import stream_error
from headwaiter_server.requests.call import Call
from headwaiter_server.requests.encoder_methods import EncoderMethods
from headwaiter_server.requests.request_path import RequestPath, ReserveBytes
from headwaiter_server.requests.wire_format import field_tag
from headwaiter_server.rpc.endpoint import Context, UnaryCalls, stream_handler
from headwaiter_server.rpc.open_streams import OpenStreams
from headwaiter_server.rpc.parsing import parse_request

_DESCRIPTOR = pb.DESCRIPTOR.services_by_name["Encoder"]
SERVICE = _DESCRIPTOR.full_name


class EncoderService:
    """Answers the methods of headwaiter.v1.Encoder.

    Args:
        path: answers the requests.
        calls: answers the calls that are no streams.
        streams: answers the streams.
    """

    def __init__(self, path: RequestPath, calls: UnaryCalls, streams: OpenStreams) -> None:
        self._path, self._calls, self._streams = path, calls, streams
        self._methods = EncoderMethods(path).by_name

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler that a gRPC server dispatches the service's calls to."""
        handlers = {name: self._calls.handler(name, partial(self.answer, name)) for name in self._methods}
        recorder, limit = self._path.recorder, self._path.call_limit
        handlers["EncodeStream"] = stream_handler("EncodeStream", self.encode_stream, recorder, limit)
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    async def answer(self, method: str, raw: bytes, call: Call) -> bytes:
        """Answer a request to a method that is not a stream, from message bytes to message bytes."""
        request_class = getattr(pb, _DESCRIPTOR.methods_by_name[method].input_type.name)
        request = await parse_request(raw, request_class(), call, self._path.limits.sequences)
        reply = await self._methods[method](request, call)
        self._path.hold_reply(call, len(reply))
        return reply

    async def encode_stream(self, context: Context, call: Call) -> None:
        """Encode the sequences of each request of a stream."""
        stream = EncodeStream(self._path.encode_packed, self._path.limits.sequences)
        await self._streams.answer(context, call, stream)


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

    async def parse(self, raw: bytes, call: Call) -> pb.EncodeRequest:
        """Return a request."""
        return await parse_request(raw, pb.EncodeRequest(), call, self._max_sequences)

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
