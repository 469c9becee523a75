"""Call EncodeStream with gRPC and the generated code, without Headwaiter's client. Prints a vector or error per text.

Run: python examples/client/raw_stream.py [host:port]
"""

import sys

import grpc
import numpy as np

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.encoder_pb2_grpc import EncoderStub

[address] = sys.argv[1:] or ["localhost:50051"]
texts = {"a": "the bread is fresh", "b": "too long " * 150, "c": "rain falls on stone"}

requests = (pb.EncodeRequest(request_id=key, texts=pb.Texts(values=[text])) for key, text in texts.items())
with grpc.insecure_channel(address) as channel:
    stub = EncoderStub(channel)  # type: ignore[no-untyped-call]
    for answer in stub.EncodeStream(requests, timeout=30):  # Answers arrive in any order; the id names the request.
        if answer.HasField("error"):
            print(f"{answer.request_id}: {pb.ErrorReason.Name(answer.error.reason)}: {answer.error.message}")
        else:
            pooled = answer.response.pooled
            vectors = np.frombuffer(pooled.data, "<f4").reshape(pooled.shape)
            print(f"{answer.request_id}: {vectors[0, :3].astype(float).round(3).tolist()} …")
