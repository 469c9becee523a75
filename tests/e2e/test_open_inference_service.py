"""The Open Inference Protocol over real gRPC describes the server, its models and their statistics truthfully."""

import asyncio
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from headwaiter_proto import open_inference_pb2 as oip
from tests.support.e2e.in_process_server import connect, metrics_url, serving
from tests.support.e2e.open_inference_caller import SERVICE, calling, id_request, raw_request, refusal
from tests.support.e2e.prometheus_metrics import read_metric


async def test_health_metadata_and_config_describe_the_server(text_bundle: Path) -> None:
    async with serving(text_bundle, max_request_sequences=64, instances=2) as server, calling(server) as caller:
        assert (await caller.ServerLive(oip.ServerLiveRequest())).live
        assert (await caller.ServerReady(oip.ServerReadyRequest())).ready
        for name, version, ready in (("tiny-text", "", True), ("tiny-text", "1", True), ("tiny-text", "2", False)):
            assert (await caller.ModelReady(oip.ModelReadyRequest(name=name, version=version))).ready is ready
        assert not (await caller.ModelReady(oip.ModelReadyRequest(name="other"))).ready
        metadata = await caller.ServerMetadata(oip.ServerMetadataRequest())
        assert metadata.name == "headwaiter"
        assert list(metadata.extensions) == ["model_configuration", "parameters", "schedule_policy", "statistics"]
        model = await caller.ModelMetadata(oip.ModelMetadataRequest(name="tiny-text"))
        assert {each.name: (each.datatype, list(each.shape)) for each in model.inputs} == {
            "text": ("BYTES", [-1, 1]),
            "input_ids": ("INT64", [-1, -1]),
            "attention_mask": ("INT64", [-1, -1]),
        }
        assert {each.name: (each.datatype, list(each.shape)) for each in model.outputs} == {
            "pooled": ("FP32", [-1, 32]),
            "hidden": ("FP32", [-1, -1, 32]),
            "token_count": ("INT32", [-1]),
        }
        config = (await caller.ModelConfig(oip.ModelConfigRequest(name="tiny-text"))).config
        assert (config.max_batch_size, config.WhichOneof("scheduling_choice")) == (64, "dynamic_batching")
        assert [(group.kind, group.count) for group in config.instance_group] == [(oip.ModelInstanceGroup.KIND_CPU, 2)]
        assert {each.name for each in config.input} == {each.name for each in model.inputs}


async def statistics_of(caller: Any, name: str = "") -> oip.ModelStatistics:
    (statistics,) = (await caller.ModelStatistics(oip.ModelStatisticsRequest(name=name))).model_stats
    assert isinstance(statistics, oip.ModelStatistics)
    return statistics


async def test_statistics_count_requests_sequences_and_batches_of_all_protocols(text_bundle: Path) -> None:
    async with serving(text_bundle) as server, connect(server) as client, calling(server) as caller:
        empty = await statistics_of(caller, "tiny-text")
        assert (empty.inference_count, empty.last_inference) == (0, 0)
        await caller.infer(raw_request("tiny-text", texts=["fresh bread", "rain"]))
        await client.encode_tokens([[1, 2, 3], [4], [5, 6]])
        await refusal(caller.ModelInfer(id_request(1000)))
        counted = await statistics_of(caller)
        assert (counted.name, counted.version) == ("tiny-text", "1")
        assert (counted.inference_count, counted.execution_count) == (5, 2)
        stages = counted.inference_stats
        assert (stages.success.count, stages.fail.count) == (2, 1)
        parts = (stages.queue, stages.compute_input, stages.compute_infer, stages.compute_output)
        assert sum(part.ns for part in parts) == pytest.approx(stages.success.ns, rel=1e-6)
        assert stages.compute_infer.ns > 0
        batch_counts = {batches.batch_size: batches.compute_infer.count for batches in counted.batch_stats}
        assert batch_counts == {2: 1, 3: 1}
        assert sum(batches.compute_infer.ns for batches in counted.batch_stats) <= stages.success.ns
        assert counted.last_inference > 1_700_000_000_000


async def test_methods_of_other_extensions_are_unimplemented(text_bundle: Path) -> None:
    async with (
        serving(text_bundle) as server,
        calling(server) as caller,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        for method in ("SystemSharedMemoryStatus", "CudaSharedMemoryRegister", "TraceSetting", "LogSettings"):
            call: Any = channel.unary_unary(f"/{SERVICE}/{method}")
            error = await refusal(call(b""))
            assert error.code() is grpc.StatusCode.UNIMPLEMENTED
            assert method in str(error.details())
        index = oip.RepositoryIndexRequest(repository_name="other")
        assert (await refusal(caller.RepositoryIndex(index))).code() is grpc.StatusCode.UNIMPLEMENTED
        load = oip.RepositoryModelLoadRequest(model_name="tiny-text")
        error = await refusal(caller.RepositoryModelLoad(load))
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED
        assert "--model-control" in str(error.details())


async def test_the_index_lists_versions_and_callers_load_and_unload_models(text_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "3").symlink_to(text_bundle)
    (tmp_path / "texts" / "4").mkdir()
    (tmp_path / "texts" / "4" / "manifest.json").write_text("{}")
    async with serving(None, models=tmp_path, model_control="on") as server, calling(server) as caller:
        metadata = await caller.ServerMetadata(oip.ServerMetadataRequest())
        assert "model_repository" in metadata.extensions
        index = (await caller.RepositoryIndex(oip.RepositoryIndexRequest())).models
        states = {each.version: (each.name, each.state, bool(each.reason)) for each in index}
        assert states == {"3": ("texts", "READY", False), "4": ("texts", "UNAVAILABLE", True)}
        ready = (await caller.RepositoryIndex(oip.RepositoryIndexRequest(ready=True))).models
        assert [each.version for each in ready] == ["3"]
        unload = oip.RepositoryModelUnloadRequest(model_name="texts")
        unload.parameters["unload_dependents"].bool_param = False
        await caller.RepositoryModelUnload(unload)
        assert not (await caller.ModelReady(oip.ModelReadyRequest(name="texts"))).ready
        (tmp_path / "texts" / "4" / "manifest.json").unlink()
        load = oip.RepositoryModelLoadRequest(model_name="texts")
        await caller.RepositoryModelLoad(load)
        assert (await caller.ModelReady(oip.ModelReadyRequest(name="texts", version="3"))).ready
        load.parameters["config"].string_param = "{}"
        assert (await refusal(caller.RepositoryModelLoad(load))).code() is grpc.StatusCode.UNIMPLEMENTED


async def test_reflection_lists_and_describes_the_service(text_bundle: Path) -> None:
    requests = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE),
    ]
    async with serving(text_bundle) as server, grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        reflect: Any = reflection_pb2_grpc.ServerReflectionStub(cast(Any, channel)).ServerReflectionInfo
        listed, described = [reply async for reply in reflect(iter(requests))]
    assert SERVICE in [service.name for service in listed.list_services_response.service]
    (file,) = described.file_descriptor_response.file_descriptor_proto
    assert b"headwaiter" not in file


async def test_calls_without_the_bearer_token_are_refused(text_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret")
    async with serving(text_bundle, token_file=tmp_path / "token") as server, calling(server) as caller:
        assert (await caller.ServerLive(oip.ServerLiveRequest())).live
        # The answer to a caller without a token does not list the models.
        assert (await caller.ModelReady(oip.ModelReadyRequest())).ready
        error = await refusal(caller.ServerMetadata(oip.ServerMetadataRequest()))
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED
        metadata = (("authorization", "Bearer s3cret"),)
        assert (await caller.infer(id_request(1), metadata=metadata))["pooled"].shape == (1, 32)
        labels = {"method": "ServerMetadata", "code": "UNAUTHENTICATED"}
        assert await read_metric(metrics_url(server), "headwaiter_requests_total", **labels) == 1


async def test_a_server_that_is_leaving_is_not_ready_and_answers(text_bundle: Path) -> None:
    async with serving(text_bundle) as server, calling(server) as caller:
        assert (await caller.ServerReady(oip.ServerReadyRequest())).ready
        server.leave()
        async with asyncio.timeout(10):
            while (await caller.ServerReady(oip.ServerReadyRequest())).ready:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert not (await caller.ModelReady(oip.ModelReadyRequest(name="tiny-text"))).ready
        assert (await caller.infer(id_request(1, 2)))["pooled"].shape == (1, 32)
