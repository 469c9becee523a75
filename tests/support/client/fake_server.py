"""A fake server: answers over real gRPC as a test tells it to, and records the requests."""

import math
import threading
from collections.abc import Callable
from concurrent import futures
from typing import Any

import grpc
import numpy as np
from google.protobuf import any_pb2, message
from google.rpc import status_pb2
from grpc_status import rpc_status

from headwaiter_client.calls import steps
from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.encoder_pb2_grpc import EncoderServicer, add_EncoderServicer_to_server
from headwaiter_proto.rules.status import FRONT_ENDS_KEY

MODEL = pb.ModelRef(name="tiny", digest="ab" * 32)
WIDTH = 3

# The reply to LoadModel.
LOADED = pb.ModelRef(name="tiny", version="2", digest="cd" * 32, precision=pb.PRECISION_FP16)

# The reply to ListBatches.
BATCHES = [
    pb.Batch(
        model="tiny", version="2", lengths=[5, 3], requests=[0, 0], ended_s_ago=2, predicted_s=0.25, measured_s=0.5
    ),
    pb.Batch(model="tiny", version="2", lengths=[7], requests=[1], ended_s_ago=1, predicted_s=0.5, measured_s=0.25),
]

# Makes one call with a new client: call(server, "encode", ["a text"], hidden=True, connect={"token": "t"}).
Call = Callable[..., Any]


class FakeServer(EncoderServicer):
    """Answers with made-up vectors, until a test sets a refusal.

    Attributes:
        address: host and port.
        requests: the requests of all calls, in order.
        metadata: metadata of the last call.
        traceparents: the traceparent of each request; empty for a request without one.
        remaining_s: seconds to the deadline of the last call when it arrived.
        refusal: status that ends every call; None answers calls.
        refusals_left: number of calls that `refusal` still ends.
        refuses_health_checks: whether `refusal` ends health checks too.
        released: calls wait until this is set.
        entered: set when a call has arrived.
        cancelled: set when a waiting call was cancelled.
        serving: whether the health service answers SERVING.
        front_ends: what the health service says about front ends.
        connections: the connections of the calls.
        description: the reply to GetModel.
        versions: the states that ListModels reports; by default it reports none, as a server of version 1.
    """

    def __init__(
        self,
        credentials: grpc.ServerCredentials | None = None,
        interceptors: list[grpc.ServerInterceptor] | None = None,
    ) -> None:
        self.requests: list[message.Message] = []
        self.metadata: dict[str, str | bytes] = {}
        self.traceparents: list[str] = []
        self.remaining_s = 0.0
        self.refusal: grpc.Status | None = None
        self.refusals_left = math.inf
        self.refuses_health_checks = True
        self.serving = True
        self.front_ends = ""
        self.connections: set[str] = set()
        self.description = pb.GetModelResponse(
            model=MODEL,
            max_text_tokens=256,
            width=WIDTH,
            # The size is the default of gRPC servers.
            limits=pb.RequestLimits(max_sequences=4096, max_tokens=65536, max_message_bytes=4 << 20),
        )
        self.versions: list[pb.ModelStatus] = []
        self.released = threading.Event()
        self.released.set()
        self.entered = threading.Event()
        self.cancelled = threading.Event()
        self._server = grpc.server(futures.ThreadPoolExecutor(16), interceptors=interceptors)
        add_EncoderServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        health: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(self._check_health)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": health}),)
        )
        port = (
            self._server.add_secure_port("127.0.0.1:0", credentials)
            if credentials
            else self._server.add_insecure_port("127.0.0.1:0")
        )
        self.address = f"127.0.0.1:{port}"
        self._server.start()

    def stop(self) -> None:
        self.released.set()
        self._server.stop(0).wait()

    def refuse(self, code: grpc.StatusCode, text: str, *details: message.Message) -> None:
        """End every later call with a status that carries the details."""
        status = status_pb2.Status(code=code.value[0], message=text)
        for detail in details:
            packed = any_pb2.Any()
            packed.Pack(detail)
            status.details.append(packed)
        self.refusal = rpc_status.to_status(status)

    def Encode(self, request: pb.EncodeRequest, context: grpc.ServicerContext) -> pb.EncodeResponse:  # noqa: N802
        self._record(request, context)
        return encode_response(request)

    def Attend(self, request: pb.AttendRequest, context: grpc.ServicerContext) -> pb.AttendResponse:  # noqa: N802
        self._record(request, context)
        return attend_response(request)

    def ListModels(self, request: pb.ListModelsRequest, context: grpc.ServicerContext) -> pb.ListModelsResponse:  # noqa: N802
        self._record(request, context)
        return pb.ListModelsResponse(models=[MODEL], versions=self.versions)

    def GetModel(self, request: pb.GetModelRequest, context: grpc.ServicerContext) -> pb.GetModelResponse:  # noqa: N802
        self._record(request, context)
        return self.description

    def LoadModel(self, request: pb.LoadModelRequest, context: grpc.ServicerContext) -> pb.LoadModelResponse:  # noqa: N802
        self._record(request, context)
        return pb.LoadModelResponse(model=LOADED)

    def UnloadModel(self, request: pb.UnloadModelRequest, context: grpc.ServicerContext) -> pb.UnloadModelResponse:  # noqa: N802
        self._record(request, context)
        return pb.UnloadModelResponse()

    def ListBatches(self, request: pb.ListBatchesRequest, context: grpc.ServicerContext) -> pb.ListBatchesResponse:  # noqa: N802
        self._record(request, context)
        return pb.ListBatchesResponse(batches=BATCHES)

    def _check_health(self, _request: bytes, context: grpc.ServicerContext) -> bytes:
        self._record(None, context)
        if self.front_ends:
            context.set_trailing_metadata(((FRONT_ENDS_KEY, self.front_ends),))
        return steps.HEALTH_SERVING if self.serving else b"\x08\x02"

    def _record(self, request: message.Message | None, context: grpc.ServicerContext) -> None:
        if request is not None:
            self.requests.append(request)
            self.connections.add(context.peer())
        self.metadata = dict(context.invocation_metadata())
        if request is not None:
            self.traceparents.append(str(self.metadata.get("traceparent", "")))
        self.remaining_s = context.time_remaining()
        context.add_callback(self._record_end)
        self.entered.set()
        self.released.wait()
        if self.refusal and self.refusals_left and (request is not None or self.refuses_health_checks):
            self.refusals_left -= 1
            context.abort_with_status(self.refusal)

    def _record_end(self) -> None:
        if not self.released.is_set():
            self.cancelled.set()


def encode_response(request: pb.EncodeRequest) -> pb.EncodeResponse:
    """Return a valid reply: hidden vectors hold the index of their sequence, pooled vectors half of it."""
    lengths = {
        "tokens": request.tokens.lengths,
        "features": request.features.lengths,
        "texts": [len(text.split()) + 2 for text in request.texts.values],
    }[request.WhichOneof("input") or ""]
    indices = np.arange(len(lengths))
    response = pb.EncodeResponse(
        request_id=request.request_id,
        model=MODEL,
        lengths=lengths,
        timings=pb.Timings(tokenize_s=1, queue_s=2, assemble_s=3, compute_s=4, respond_s=5, total_s=15, batches=2),
    )
    if request.output.pooled or not request.output.hidden:
        response.pooled.CopyFrom(_tensor(indices / 2, request.output.dtype))
    if request.output.hidden:
        response.hidden.CopyFrom(_tensor(np.repeat(indices, lengths), request.output.dtype))
    return response


def attend_response(request: pb.AttendRequest) -> pb.AttendResponse:
    """Return a valid reply of a model with two layers, and three heads of width 2.

    In layer l and head h, the weight of query i and key j is proportional to 1 + l + h + i + j; contexts hold h.
    """
    words = [word for text in request.texts.values for word in text.split()]
    tokens = ["[CLS]", *words, "[SEP]"] if words else []
    n = len(tokens) or sum([*request.tokens.lengths, *request.features.lengths])
    layers, heads = list(request.layers) or range(2), list(request.heads) or range(3)
    layer, head, query, key = np.ix_(layers, heads, range(n), range(n))
    unnormalized = 1.0 + layer + head + query + key
    weights = (unnormalized / unnormalized.sum(-1, keepdims=True)).astype("<f4")
    response = pb.AttendResponse(
        request_id=request.request_id,
        model=MODEL,
        tokens=tokens,
        weights=pb.Tensor(dtype=pb.DATA_TYPE_FLOAT32, shape=weights.shape, data=weights.tobytes()),
        timings=pb.Timings(tokenize_s=1, queue_s=2, compute_s=4, respond_s=5, total_s=12, batches=1),
    )
    if request.HasField("query"):
        context = np.broadcast_to(np.array(heads, "<f4")[:, None], (len(layers), len(heads), 2))
        response.context.CopyFrom(pb.Tensor(dtype=pb.DATA_TYPE_FLOAT32, shape=context.shape, data=context.tobytes()))
    return response


def _tensor(column: Any, dtype: pb.DataType) -> pb.Tensor:
    rows = np.repeat(column[:, None], WIDTH, axis=1).astype("<f2" if dtype == pb.DATA_TYPE_FLOAT16 else "<f4")
    return pb.Tensor(dtype=dtype, shape=rows.shape, data=rows.tobytes())
