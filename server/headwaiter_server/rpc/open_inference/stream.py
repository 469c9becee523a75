"""The messages of ModelStreamInfer."""

from collections.abc import Awaitable, Callable

from headwaiter_proto import open_inference_pb2 as oip
from headwaiter_proto.rules.errors import HeadwaiterError
from headwaiter_proto.rules.requests import check_id
from headwaiter_server.open_inference.infer_requests import InferQuestion
from headwaiter_server.open_inference.infer_responses import stream_failure, stream_response
from headwaiter_server.requests.call import Call
from headwaiter_server.requests.request_path import ReserveBytes
from headwaiter_server.rpc.endpoint import Context
from headwaiter_server.rpc.open_inference.messages import read_message

_Write = Callable[[oip.ModelInferResponse], bytes]

# A caller that sends this metadata wants the error of a request to end the stream.
_GRPC_ERRORS = ("triton_grpc_error", "true")


class InferStream:
    """Reads ModelInferRequests, and writes ModelStreamInferResponses.

    Args:
        parse: reads a request.
        infer: answers a request.
        grpc_errors: whether the error of a request ends the stream.
    """

    # Triton's order, which callers without request ids depend on.
    in_order = True
    unique_ids = False

    def __init__(
        self,
        parse: Callable[[bytes, Call], Awaitable[oip.ModelInferRequest]],
        infer: Callable[[InferQuestion, Call, ReserveBytes, _Write], Awaitable[bytes]],
        *,
        grpc_errors: bool,
    ) -> None:
        self._parse, self._infer, self._grpc_errors = parse, infer, grpc_errors

    async def parse(self, raw: bytes, call: Call) -> oip.ModelInferRequest:
        """Return a request."""
        return await self._parse(raw, call)

    def id_of(self, request: oip.ModelInferRequest) -> str:
        """Return the id of a request."""
        check_id(request.id)
        return request.id

    async def answer(self, request: oip.ModelInferRequest, call: Call, reserve: ReserveBytes) -> bytes:
        """Return the answer to a request."""
        return await self._infer(read_message(request), call, reserve, _write)

    def failure(self, request: oip.ModelInferRequest, call: Call, error: HeadwaiterError) -> bytes:
        """Return the answer to a request that failed."""
        if self._grpc_errors:
            raise error
        return stream_failure(request, str(error)).SerializeToString()


def wants_grpc_errors(context: Context) -> bool:
    """Return whether the caller wants the error of a request to end the stream."""
    return _GRPC_ERRORS in (context.invocation_metadata() or ())


def _write(response: oip.ModelInferResponse) -> bytes:
    return stream_response(response).SerializeToString()
