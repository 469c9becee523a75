"""A program ends at once, whatever its client does: real processes, against a server that holds the calls."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.status import DOMAIN
from tests.client.fake_server import FakeServer

_EXIT_S = 0.5
_STATES = ["idle", "call", "list", "stream", "pause", "list_pause", "source"]

# Each program does this in its main thread, which Ctrl-C then interrupts, or in a thread that the main thread leaves.
_BLOCKING = """
import sys, threading, time
from headwaiter_client import Client

address, state, ending = sys.argv[1:]
client = Client(address, timeout_s=60)
texts = [f"text {number}" for number in range(600)]

def source():
    yield "a text"
    time.sleep(60)

def use():
    print("started", flush=True)
    match state:
        case "idle":
            time.sleep(60)
        case "call" | "pause":
            client.encode(["a text"])
        case "list" | "list_pause":
            client.encode(texts)
        case "stream":
            list(client.encode_stream(texts))
        case "source":
            list(client.encode_stream(source()))

if ending == "interrupt":
    use()
threading.Thread(target=use, daemon=True).start()
sys.stdin.readline()
if ending == "exit":
    sys.exit(3)
if ending == "error":
    raise ValueError("the program failed")
"""
_ASYNC = """
import asyncio, sys, time
from headwaiter_client import AsyncClient

address, state, ending = sys.argv[1:]
texts = [f"text {number}" for number in range(600)]

async def source():
    yield "a text"
    await asyncio.sleep(60)

async def use(client):
    print("started", flush=True)
    match state:
        case "idle":
            await asyncio.sleep(60)
        case "call" | "pause":
            await client.encode(["a text"])
        case "list" | "list_pause":
            await client.encode(texts)
        case "stream":
            async for _ in client.encode_stream(texts):
                pass
        case "source":
            async for _ in client.encode_stream(source()):
                pass

async def main():
    client = AsyncClient(address, timeout_s=60)
    if ending == "interrupt":
        await use(client)
    task = asyncio.create_task(use(client))
    await asyncio.to_thread(sys.stdin.readline)
    if ending == "exit":
        sys.exit(3)
    if ending == "error":
        raise ValueError("the program failed")

asyncio.run(main())
"""


class _HoldsEncode(FakeServer):
    """Describes its model at once, and holds or refuses the other calls."""

    def GetModel(self, request: pb.GetModelRequest, context: grpc.ServicerContext) -> pb.GetModelResponse:  # noqa: N802
        return self.description


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake = _HoldsEncode()
    yield fake
    fake.stop()


@pytest.mark.parametrize("ending", ["end", "exit", "error", "interrupt"])
@pytest.mark.parametrize("state", _STATES)
@pytest.mark.parametrize("program", [_BLOCKING, _ASYNC], ids=["sync", "async"])
def test_a_program_ends_within_half_a_second(server: FakeServer, program: str, state: str, ending: str) -> None:
    if state.endswith("pause"):
        server.refuse(
            grpc.StatusCode.UNAVAILABLE,
            "the server is starting",
            error_details_pb2.ErrorInfo(reason="UNAVAILABLE", domain=DOMAIN),
            error_details_pb2.RetryInfo(retry_delay=Duration(seconds=30)),
        )
    else:
        server.released.clear()

    command = [sys.executable, "-c", program, server.address, state, ending]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"started\n"
        if state != "idle":
            assert server.entered.wait(30)
        time.sleep(0.3)
        begin_s = time.monotonic()
        if ending == "interrupt":
            process.send_signal(signal.SIGINT)
            _, stderr = process.communicate(timeout=30)
        else:
            _, stderr = process.communicate(b"\n", timeout=30)
        seconds = time.monotonic() - begin_s
    assert process.returncode == {"end": 0, "exit": 3, "error": 1, "interrupt": -signal.SIGINT}[ending], stderr
    assert seconds < _EXIT_S, stderr
    assert (b"Traceback" in stderr) is (ending in ("error", "interrupt")), stderr
    assert b"Fatal" not in stderr
