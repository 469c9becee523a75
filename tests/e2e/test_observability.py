"""What operators can observe: reflection, and metrics that promtool accepts."""

import shutil
import subprocess

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from headwaiter_client import Client, InvalidInput
from testbed.server_process import RunningServer
from tests.support.e2e.prometheus_metrics import metrics_page


def test_reflection_lists_the_services_and_the_methods_of_the_encoder(text_server: RunningServer) -> None:
    with grpc.insecure_channel(text_server.address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        encoder = DescriptorPool(database).FindServiceByName("headwaiter.v1.Encoder")
        assert set(database.get_services()) == {
            "grpc.health.v1.Health",
            "grpc.reflection.v1alpha.ServerReflection",
            "headwaiter.v1.Encoder",
            "inference.GRPCInferenceService",
        }
    assert list(encoder.methods_by_name) == [
        "Encode",
        "EncodeStream",
        "Classify",
        "Tokenize",
        "Attend",
        "ListModels",
        "GetModel",
        "LoadModel",
        "UnloadModel",
        "ListBatches",
    ]


def test_promtool_accepts_the_metrics(text_server: RunningServer) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed: install Prometheus")
    with Client(text_server.address) as client:
        client.encode(["bread"])
        with pytest.raises(InvalidInput):
            client.encode(["bread"], prompt="another")
    page = metrics_page(text_server.metrics_url)
    checked = subprocess.run(["promtool", "check", "metrics"], input=page.encode(), capture_output=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
