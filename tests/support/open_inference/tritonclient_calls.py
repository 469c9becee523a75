"""Calls a server with tritonclient, and prints a table of what was tried. Imports nothing of Headwaiter's packages.

usage: python tritonclient_calls.py HOST:PORT

The server has the models "tiny-text" and "tiny-features", and runs with --model-control on. The exit code is 1 if a
call did not behave as expected.
"""

import asyncio
import importlib
import importlib.util
import inspect
import queue
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.metadata import version
from typing import Any

import grpc
import numpy as np
import tritonclient.grpc as blocking
import tritonclient.grpc.aio as asynchronous
from tritonclient.utils import InferenceServerException

TEXT, FEATURES = "tiny-text", "tiny-features"
PADDED = np.array([[5, 6, 7], [8, 0, 0]], np.int64)
MASK = np.array([[1, 1, 1], [1, 0, 0]], np.int64)


class Caller:
    """A client of either module, with one way to wait for both."""

    def __init__(self, module: Any, address: str) -> None:
        self.module, self.client = module, module.InferenceServerClient(address)
        self.blocking = module is blocking

    async def __call__(self, method: str, *arguments: Any, **options: Any) -> Any:
        result = getattr(self.client, method)(*arguments, **options)
        return await result if inspect.isawaitable(result) else result

    def inputs(self, **arrays: Any) -> list[Any]:
        types = {"float32": "FP32", "float16": "FP16", "int64": "INT64", "int32": "INT32", "object": "BYTES"}
        inputs = []
        for name, array in arrays.items():
            tensor = self.module.InferInput(name, list(array.shape), types[array.dtype.name])
            tensor.set_data_from_numpy(array)
            inputs.append(tensor)
        return inputs

    def outputs(self, *names: str) -> list[Any]:
        return [self.module.InferRequestedOutput(name) for name in names]

    async def infer(self, model: str = TEXT, outputs: tuple[str, ...] = (), **arrays: Any) -> Any:
        return await self("infer", model, self.inputs(**arrays), outputs=self.outputs(*outputs) or None)

    async def error(self, *arguments: Any, **options: Any) -> InferenceServerException:
        try:
            await self(*arguments, **options)
        except InferenceServerException as error:
            return error
        raise AssertionError("the call succeeded")

    async def stream(self, *requests: dict[str, Any], headers: dict[str, str] | None = None) -> list[Any]:
        """Return a result or an error for each request."""
        if self.blocking:
            return await asyncio.to_thread(self._blocking_stream, requests, headers)

        async def iterate() -> AsyncIterator[dict[str, Any]]:
            for request in requests:
                yield {"model_name": TEXT, **request}

        answers = []
        try:
            async for result, error in self.client.stream_infer(iterate(), headers=headers):
                answers.append(error or result)
        except grpc.aio.AioRpcError as error:
            answers.append(InferenceServerException(error.details(), f"StatusCode.{error.code().name}"))
        return answers

    def _blocking_stream(self, requests: tuple[dict[str, Any], ...], headers: dict[str, str] | None) -> list[Any]:
        answers: queue.Queue[Any] = queue.Queue()
        self.client.start_stream(lambda result, error: answers.put(error or result), headers=headers)
        for request in requests:
            self.client.async_stream_infer(TEXT, **request)
        received = [answers.get(timeout=10) for _ in requests]
        self.client.stop_stream()
        return received


async def health(call: Caller) -> str:
    assert await call("is_server_live")
    assert await call("is_server_ready")
    assert await call("is_model_ready", TEXT)
    assert not await call("is_model_ready", TEXT, "99")
    assert not await call("is_model_ready", "unknown")
    return "live, ready, model ready"


async def metadata(call: Caller) -> str:
    assert (await call("get_server_metadata")).name == "headwaiter"
    model = await call("get_model_metadata", TEXT)
    assert [output.name for output in model.outputs] == ["pooled", "hidden", "token_count"]
    return "server, model"


async def config(call: Caller) -> str:
    found = (await call("get_model_config", TEXT)).config
    assert found.HasField("dynamic_batching")
    assert found.instance_group[0].count == 1
    return f"max_batch_size {found.max_batch_size}"


async def texts(call: Caller) -> str:
    for shape in ((2,), (2, 1)):
        values = np.array([b"fresh bread", "grüße".encode()], object).reshape(shape)
        pooled = (await call.infer(text=values)).as_numpy("pooled")
        assert pooled.shape == (2, 32)
        np.testing.assert_allclose(np.linalg.norm(pooled, axis=1), 1, rtol=1e-5)
    return "[n], [n, 1]"


async def ids(call: Caller) -> str:
    one = (await call.infer(input_ids=PADDED[1:, :1])).as_numpy("pooled")
    for dtype in (np.int64, np.int32):
        for flipped in (slice(None), slice(None, None, -1)):
            sent, mask = (array.astype(dtype)[:, flipped] for array in (PADDED, MASK))
            outputs = ("hidden", "token_count", "pooled")
            answer = await call.infer(outputs=outputs, input_ids=sent, attention_mask=mask)
            assert answer.as_numpy("token_count").tolist() == [3, 1]
            assert answer.as_numpy("hidden").shape == (*sent.shape, 32)
            assert (answer.as_numpy("hidden").any(axis=2) == mask).all()
            np.testing.assert_allclose(answer.as_numpy("pooled")[1:], one, atol=1e-6)
    return "INT64, INT32, padding left and right; pooled, hidden, token_count"


async def features(call: Caller) -> str:
    rows = np.random.default_rng(0).normal(size=(2, 3, 6))
    for dtype in (np.float32, np.float16):
        answer = await call.infer(FEATURES, features=rows.astype(dtype), attention_mask=MASK)
        assert answer.as_numpy("pooled").shape == (2, 24)
    return "FP32, FP16"


async def parameters(call: Caller) -> str:
    long = call.inputs(text=np.array([b"bread " * 60], object))
    assert "truncate" in str(await call.error("infer", TEXT, long))
    options = {"truncation": "right", "dimensions": 4, "normalize": False}
    answer = await call("infer", TEXT, long, request_id="r-1", priority=2, timeout=5_000_000, parameters=options)
    assert answer.as_numpy("pooled").shape == (1, 4)
    assert answer.get_response().id == "r-1"
    error = await call.error("infer", TEXT, long, parameters={"trunkation": "right"})
    assert "'trunkation'" in str(error)
    return "priority, timeout, truncation, dimensions, normalize, request_id"


async def errors(call: Caller) -> str:
    seen = []
    for model, value, expected, words in (
        ("unknown", 1, "NOT_FOUND", "'unknown'"),
        (TEXT, 10_000, "INVALID_ARGUMENT", "10000"),
        (FEATURES, 1, "INVALID_ARGUMENT", "features"),
    ):
        error = await call.error("infer", model, call.inputs(input_ids=np.array([[value]])))
        assert error.status() == f"StatusCode.{expected}", error
        assert words in error.message(), error
        seen.append(expected)
    return ", ".join(dict.fromkeys(seen))


async def concurrent(call: Caller) -> str:
    inputs = call.inputs(input_ids=PADDED)
    if not call.blocking:
        answers = await asyncio.gather(*(call("infer", TEXT, inputs) for _ in range(50)))
    else:
        done: queue.Queue[Any] = queue.Queue()
        for _ in range(50):
            call.client.async_infer(TEXT, inputs, lambda result, error: done.put(error or result))
        answers = [done.get(timeout=10) for _ in range(50)]
    assert all(answer.as_numpy("pooled").shape == (2, 32) for answer in answers)
    return "50 calls at once"


async def stream(call: Caller) -> str:
    requests = [{"inputs": call.inputs(input_ids=np.ones((1, length), np.int64))} for length in (30, 1, 20, 2)]
    answers = await call.stream(*(dict(each, outputs=call.outputs("token_count")) for each in requests))
    assert [answer.as_numpy("token_count").tolist() for answer in answers] == [[30], [1], [20], [2]]
    return "4 requests, in order"


async def stream_errors(call: Caller) -> str:
    good, bad = call.inputs(input_ids=PADDED), call.inputs(input_ids=np.array([[10_000]]))
    first, error, last = await call.stream(
        {"inputs": good}, {"inputs": bad, "request_id": "bad"}, {"inputs": good, "enable_empty_final_response": True}
    )
    assert first.as_numpy("pooled").shape == last.as_numpy("pooled").shape == (2, 32)
    assert "[request id: bad] sequence 0" in str(error)
    (ended,) = await call.stream({"inputs": bad}, headers={"triton_grpc_error": "true"})
    assert ended.status() == "StatusCode.INVALID_ARGUMENT", ended
    return "error_message, triton_grpc_error"


async def statistics(call: Caller) -> str:
    before = (await call("get_inference_statistics", TEXT)).model_stats[0]
    await call.infer(input_ids=PADDED)
    after = (await call("get_inference_statistics", TEXT)).model_stats[0]
    assert after.inference_count == before.inference_count + 2
    assert after.inference_stats.success.count == before.inference_stats.success.count + 1
    assert sum(each.batch_size * each.compute_infer.count for each in after.batch_stats) == after.inference_count
    assert len((await call("get_inference_statistics")).model_stats) == 2
    return f"{after.inference_count} sequences in {after.execution_count} batches"


async def repository(call: Caller) -> str:
    index = (await call("get_model_repository_index")).models
    assert [(model.name, model.state) for model in index] == [(FEATURES, "READY"), (TEXT, "READY")]
    await call("unload_model", FEATURES)
    assert not await call("is_model_ready", FEATURES)
    await call("load_model", FEATURES)
    assert await call("is_model_ready", FEATURES)
    return "index, unload, load"


CHECKS: list[Callable[[Caller], Awaitable[str]]] = [
    health,
    metadata,
    config,
    texts,
    ids,
    features,
    parameters,
    errors,
    concurrent,
    stream,
    stream_errors,
    statistics,
    repository,
]


async def main(address: str) -> bool:
    """Run all checks with both clients; return whether all passed."""
    passed = True
    # Our generated code needs protobuf 6, and old versions of tritonclient refuse it.
    if version("protobuf") >= "6" and importlib.util.find_spec("headwaiter_proto"):
        # Both copies of the protocol's messages live in one process.
        importlib.import_module("headwaiter_proto.open_inference_pb2")
        print("| loaded beside headwaiter_proto.open_inference_pb2 | | |")
    for module in (blocking, asynchronous):
        call = Caller(module, address)
        for check in CHECKS:
            try:
                outcome = await check(call)
            except Exception:  # noqa: BLE001 - a check may fail in any way
                passed, outcome = False, f"FAILED {traceback.format_exc()}"
            print(f"| {check.__name__} | {module.__name__} | {outcome} |", flush=True)
        await call("close")
    return passed


if __name__ == "__main__":
    sys.exit(not asyncio.run(main(sys.argv[1])))
