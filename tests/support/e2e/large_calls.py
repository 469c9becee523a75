"""Send a server large requests that it refuses.

The arguments are the ports for gRPC and HTTP, a name of `REQUESTS`, and how often to send the request.
"""

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import grpc

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto import open_inference_pb2 as oip

MESSAGE_BYTES = 2 << 20
_ENCODE, _STREAM = "/headwaiter.v1.Encoder/Encode", "/headwaiter.v1.Encoder/EncodeStream"
_INFER, _INFER_STREAM = (f"/inference.GRPCInferenceService/{name}" for name in ("ModelInfer", "ModelStreamInfer"))
_TEXT = "rain " * (MESSAGE_BYTES // 5)
_JUNK = b"\xff" * MESSAGE_BYTES


def _infer(model: str) -> bytes:
    tensor = oip.ModelInferRequest.InferInputTensor(name="text", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(_TEXT.encode())
    return oip.ModelInferRequest(model_name=model, inputs=[tensor]).SerializeToString()


def _texts(*texts: str, **fields: object) -> bytes:
    return pb.EncodeRequest(texts=pb.Texts(values=texts), **fields).SerializeToString()  # type: ignore[arg-type]


# Each request, by name: the gRPC method and the message, or the HTTP path and the body.
REQUESTS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "one text that is too long": (_ENCODE, lambda: _texts(_TEXT)),
    "one text of a partial request": (_ENCODE, lambda: _texts(_TEXT, "rain", partial=True)),
    "an unknown model": (_ENCODE, lambda: _texts(_TEXT, model="other")),
    "no message of Encode": (_ENCODE, lambda: _JUNK),
    "no message of Check": ("/grpc.health.v1.Health/Check", lambda: _JUNK),
    "no message of reflection": ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", lambda: _JUNK),
    "no message of a stream": (_STREAM, lambda: _JUNK),
    "one text of a stream": (_STREAM, lambda: _texts(_TEXT, request_id="r")),
    "an unknown model of ModelInfer": (_INFER, lambda: _infer("other")),
    "one text of ModelStreamInfer": (_INFER_STREAM, lambda: _infer("")),
    "a path without permission": ("/headwaiter.v1.Encoder/LoadModel", lambda: _JUNK),
    "one text over HTTP": ("/v1/embeddings", lambda: json.dumps({"input": _TEXT, "model": "tiny-text"}).encode()),
    "a body that is not JSON": ("/v1/embeddings", lambda: b"[" + _TEXT.encode()),
    "an unknown model over HTTP": ("/v2/models/other/infer", lambda: b'{"inputs": []' + b" " * MESSAGE_BYTES + b"}"),
}


def call(port: int, http_port: int, request: str, count: int) -> None:
    """Send a request `count` times, one after another; ignore the replies."""
    method, write = REQUESTS[request]
    message = write()
    if not method.startswith("/v"):
        options = [("grpc.max_send_message_length", -1)]
        with grpc.insecure_channel(f"127.0.0.1:{port}", options) as channel:
            send: Any = channel.stream_stream(method)
            for _ in range(count):
                try:
                    list(send(iter([message]), timeout=60))
                except grpc.RpcError as error:
                    if error.code() is grpc.StatusCode.UNAVAILABLE:
                        raise
        return
    for _ in range(count):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{http_port}{method}", message, timeout=60).close()
        except urllib.error.HTTPError as error:
            error.close()


if __name__ == "__main__":
    call(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
