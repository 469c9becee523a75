"""The Open Inference Protocol over gRPC, from message bytes to message bytes."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from headwaiter_proto import open_inference_pb2 as oip
from headwaiter_proto.rules.errors import Unimplemented
from headwaiter_server.open_inference.methods import UNARY_METHODS, OpenInferenceMethods
from headwaiter_server.requests.call import Call
from headwaiter_server.requests.request_path import RequestPath, adopt_id, reserve_nothing
from headwaiter_server.rpc.endpoint import Context, UnaryCalls, refusing_handler, stream_handler
from headwaiter_server.rpc.open_inference.messages import read_message
from headwaiter_server.rpc.open_inference.stream import InferStream, wants_grpc_errors
from headwaiter_server.rpc.open_streams import OpenStreams
from headwaiter_server.rpc.parsing import parse_request

SERVICE = "inference.GRPCInferenceService"
METHODS = frozenset(oip.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name)

# Methods of Triton's extensions that the server does not offer.
_REFUSED_METHODS = (
    "SystemSharedMemoryStatus",
    "SystemSharedMemoryRegister",
    "SystemSharedMemoryUnregister",
    "CudaSharedMemoryStatus",
    "CudaSharedMemoryRegister",
    "CudaSharedMemoryUnregister",
    "TraceSetting",
    "LogSettings",
)

_Message = TypeVar("_Message", bound=Message)


class OpenInferenceService:
    """Answers the methods of inference.GRPCInferenceService.

    Args:
        path: answers the requests.
        calls: answers the calls that are no streams.
        streams: answers the streams.
    """

    def __init__(self, path: RequestPath, calls: UnaryCalls, streams: OpenStreams) -> None:
        self._path, self._calls, self._streams = path, calls, streams
        self._methods = OpenInferenceMethods(path)

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler that a gRPC server dispatches the service's calls to."""
        handlers = {
            name: self._calls.handler(name, partial(self._answer, request_class, partial(answer, self._methods)))
            for name, (request_class, answer) in UNARY_METHODS.items()
        }
        handlers["ModelInfer"] = self._calls.handler("ModelInfer", self.model_infer)
        recorder, limit = self._path.recorder, self._path.call_limit
        handlers["ModelStreamInfer"] = stream_handler("ModelStreamInfer", self.model_stream_infer, recorder, limit)
        for name in _REFUSED_METHODS:
            handlers[name] = refusing_handler(name, partial(_not_offered, name), recorder)
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    async def model_infer(self, raw: bytes, call: Call) -> bytes:
        """Encode the sequences of a request."""
        request = await self._parse(raw, call, oip.ModelInferRequest)
        adopt_id(call, request.id)
        write = oip.ModelInferResponse.SerializeToString
        return await self._methods.infer(read_message(request), call, reserve_nothing, write)

    async def model_stream_infer(self, context: Context, call: Call) -> None:
        """Encode the sequences of each request of a stream."""
        parse = partial(self._parse, message_type=oip.ModelInferRequest)
        stream = InferStream(parse, self._methods.infer, grpc_errors=wants_grpc_errors(context))
        await self._streams.answer(context, call, stream)

    async def _answer(
        self, request_class: type[Message], answer: Callable[[Any, Call], Awaitable[Message]], raw: bytes, call: Call
    ) -> bytes:
        return (await answer(await self._parse(raw, call, request_class), call)).SerializeToString()

    async def _parse(self, raw: bytes, call: Call, message_type: type[_Message]) -> _Message:
        limits = self._path.limits
        # In typed contents, each token and each position of padding is a number of its own.
        return await parse_request(raw, message_type(), call, limits.sequences, more_fields=limits.tokens)


def _not_offered(method: str) -> Unimplemented:
    return Unimplemented(f"the server does not offer {method}: it has neither shared memory nor settings of traces")
