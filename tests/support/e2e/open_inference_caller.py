"""Calls the Open Inference Protocol of a server with messages of our own copy, as any gRPC client would."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray

from headwaiter_proto import open_inference_pb2 as oip
from headwaiter_server.app import Server

SERVICE = "inference.GRPCInferenceService"
_DTYPES = {"FP32": "<f4", "INT32": "<i4"}
_TYPES = {"int64": "INT64", "int32": "INT32", "float32": "FP32", "float16": "FP16"}


class Caller:
    """A client of one server."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self._methods = oip.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name

    def __getattr__(self, method: str) -> Any:
        """Return a method of the service."""
        described = self._methods[method]
        reply_type = getattr(oip, described.output_type.name)
        kind = self._channel.stream_stream if described.client_streaming else self._channel.unary_unary
        return kind(f"/{SERVICE}/{method}", lambda message: message.SerializeToString(), reply_type.FromString)

    async def infer(self, request: oip.ModelInferRequest, **options: Any) -> dict[str, NDArray[Any]]:
        return arrays(await self.ModelInfer(request, **options))


@asynccontextmanager
async def calling(server: Server) -> AsyncIterator[Caller]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        yield Caller(channel)


def raw_request(
    model: str, outputs: tuple[str, ...] = (), texts: list[str] | None = None, **inputs: NDArray[Any]
) -> oip.ModelInferRequest:
    """Return a request with raw contents, as tritonclient sends it."""
    request = oip.ModelInferRequest(model_name=model)
    for output in outputs:
        request.outputs.add(name=output)
    if texts is not None:
        request.inputs.add(name="text", datatype="BYTES", shape=[len(texts), 1])
        encoded = [text.encode() for text in texts]
        request.raw_input_contents.append(b"".join(len(text).to_bytes(4, "little") + text for text in encoded))
    for name, values in inputs.items():
        request.inputs.add(name=name, datatype=_TYPES[values.dtype.name], shape=values.shape)
        request.raw_input_contents.append(values.tobytes())
    return request


def arrays(reply: oip.ModelInferResponse) -> dict[str, NDArray[Any]]:
    """Return the outputs of a reply, raw or typed."""
    found = {}
    for index, output in enumerate(reply.outputs):
        dtype = _DTYPES[output.datatype]
        if reply.raw_output_contents:
            values = np.frombuffer(reply.raw_output_contents[index], dtype)
        else:
            values = np.array([*output.contents.fp32_contents, *output.contents.int_contents], dtype)
        found[output.name] = values.reshape(tuple(output.shape))
    return found


def id_request(*ids: int, model: str = "tiny-text", **fields: Any) -> oip.ModelInferRequest:
    """Return a request with one sequence of ids."""
    request = raw_request(model, input_ids=np.array([ids], np.int64))
    request.MergeFrom(oip.ModelInferRequest(**fields))
    return request


async def refusal(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    return refused.value
