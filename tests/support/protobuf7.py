"""Checks the package without extras and with protobuf 7. `make test-protobuf7` runs this program."""

from importlib.metadata import version
from importlib.util import find_spec

import grpc
import numpy as np
from google.protobuf import json_format
from google.rpc import error_details_pb2

from headwaiter_client import Client, SequenceTooLong
from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto import open_inference_pb2 as oip
from headwaiter_proto.manifest_pb2 import Manifest
from tests.support.client.fake_server import FakeServer

SERVER_PACKAGES = ("torch", "onnx", "onnxruntime", "tokenizers", "transformers")


def main() -> None:
    """Check that the generated code and the client work, and that the install brought no server packages."""
    assert version("protobuf").startswith("7."), version("protobuf")
    assert not [name for name in SERVER_PACKAGES if find_spec(name)]
    messages_survive_serialization()
    the_client_reads_replies_and_errors()
    print(f"passed with protobuf {version('protobuf')} and grpcio {version('grpcio')}")


def messages_survive_serialization() -> None:
    tokens = pb.TokenSequences(dtype=pb.DATA_TYPE_INT32, data=bytes(12), lengths=[2, 1])
    request = pb.EncodeRequest(model="tiny", tokens=tokens, output=pb.OutputOptions(normalize=False))
    assert pb.EncodeRequest.FromString(request.SerializeToString()) == request
    manifest = Manifest(schema_version=1, name="tiny", pooling=pb.POOLING_MEAN)
    infer = oip.ModelInferRequest(model_name="tiny", raw_input_contents=[bytes(8)])
    infer.parameters["priority"].uint64_param = 1
    assert oip.ModelInferRequest.FromString(infer.SerializeToString()) == infer
    assert json_format.Parse(json_format.MessageToJson(manifest), Manifest()) == manifest


def the_client_reads_replies_and_errors() -> None:
    server = FakeServer()
    with Client(server.address) as client:
        encoding = client.encode_tokens([[1, 2], [3]], hidden=True)
        np.testing.assert_array_equal(encoding.lengths, [2, 1])
        server.refuse(
            grpc.StatusCode.INVALID_ARGUMENT,
            "too long",
            error_details_pb2.ErrorInfo(reason="SEQUENCE_TOO_LONG", domain="headwaiter", metadata={"limit": "64"}),
        )
        try:
            client.encode_tokens([[1] * 65])
        except SequenceTooLong as error:
            assert error.limit == 64  # noqa: PT017 - pytest is not installed in this environment
        else:
            raise AssertionError("the refusal was not raised")
    server.stop()


if __name__ == "__main__":
    main()
