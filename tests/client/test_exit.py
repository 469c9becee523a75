"""A program ends at once, whatever its client does: real processes, against servers that hold or refuse the calls."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.status import DOMAIN
from tests.support.client.fake_server import FakeServer
from tests.support.tiers import exhaustive

# It takes 0.1 s on an idle machine. Threads that are joined would take the 16 s of the calls.
_EXIT_S = 3.0
# What a client does, and how many of its requests a server then holds or has refused.
_HELD = {"call": 1, "list": 3, "stream": 3, "source": 1}
_REFUSED = {"pause": 1, "list_pause": 3}
_STATES = ["idle", *_HELD, *_REFUSED]

# A program is in one or several states at the same time. The blocking program is in each state in a thread, or in the
# main thread if Ctrl-C interrupts it. Another thread then takes the signal, so that the signal does not wake the main
# thread: a signal that comes just before the main thread waits does not wake it either.
_BLOCKING = """
import signal, sys, threading, time
from headwaiter_client import Client

holds, refuses, ending, *states = sys.argv[1:]
holding, refused = Client(holds, timeout_s=60), Client(refuses, timeout_s=60)
texts = [f"text {number}" for number in range(600)]

def source():
    yield "a text"
    time.sleep(60)

actions = {
    "idle": lambda: time.sleep(60),
    "call": lambda: holding.encode(["a text"]),
    "pause": lambda: refused.encode(["a text"]),
    "list": lambda: holding.encode(texts),
    "list_pause": lambda: refused.encode(texts),
    "stream": lambda: list(holding.encode_stream(texts)),
    "source": lambda: list(holding.encode_stream(source())),
}

def use(state):
    print(state + "\\n", end="", flush=True)
    actions[state]()

if ending == "interrupt":
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    if states != ["idle"]:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    use(*states)
for state in states:
    threading.Thread(target=use, args=(state,), daemon=True).start()
sys.stdin.readline()
if ending == "exit":
    sys.exit(3)
if ending == "error":
    raise ValueError("the program failed")
"""
_ASYNC = """
import asyncio, sys, time
from headwaiter_client import AsyncClient

holds, refuses, ending, *states = sys.argv[1:]
texts = [f"text {number}" for number in range(600)]

async def source():
    yield "a text"
    await asyncio.sleep(60)

async def drain(stream):
    async for _ in stream:
        pass

async def main():
    holding, refused = AsyncClient(holds, timeout_s=60), AsyncClient(refuses, timeout_s=60)
    actions = {
        "idle": lambda: asyncio.sleep(60),
        "call": lambda: holding.encode(["a text"]),
        "pause": lambda: refused.encode(["a text"]),
        "list": lambda: holding.encode(texts),
        "list_pause": lambda: refused.encode(texts),
        "stream": lambda: drain(holding.encode_stream(texts)),
        "source": lambda: drain(holding.encode_stream(source())),
    }

    async def use(state):
        print(state + "\\n", end="", flush=True)
        await actions[state]()

    tasks = [asyncio.create_task(use(state)) for state in states]
    if ending == "interrupt":
        await asyncio.gather(*tasks)
    await asyncio.to_thread(sys.stdin.readline)
    if ending == "exit":
        sys.exit(3)
    if ending == "error":
        raise ValueError("the program failed")

asyncio.run(main())
"""


class _Fake(FakeServer):
    """Describes its model at once, and holds or refuses the other calls."""

    def GetModel(self, request: pb.GetModelRequest, context: grpc.ServicerContext) -> pb.GetModelResponse:  # noqa: N802
        return self.description


@pytest.fixture
def holding(starts_processes: None) -> Iterator[FakeServer]:
    fake = _Fake()
    fake.released.clear()
    yield fake
    fake.stop()


@pytest.fixture
def refusing(starts_processes: None) -> Iterator[FakeServer]:
    fake = _Fake()
    fake.refuse(
        grpc.StatusCode.UNAVAILABLE,
        "the server is starting",
        error_details_pb2.ErrorInfo(reason="UNAVAILABLE", domain=DOMAIN),
        error_details_pb2.RetryInfo(retry_delay=Duration(seconds=30)),
    )
    yield fake
    fake.stop()


def _cases() -> Iterator[Any]:
    """Yield programs, endings and states. All states at once cover each one, unless the main thread is in the state."""
    for name, program in (("sync", _BLOCKING), ("async", _ASYNC)):
        for ending in ("end", "exit", "error", "interrupt"):
            in_main_thread = (name, ending) == ("sync", "interrupt")
            if not in_main_thread:
                yield pytest.param(program, ending, _STATES, id=f"{name}-{ending}-all")
            alone = [pytest.param(program, ending, [state], id=f"{name}-{ending}-{state}") for state in _STATES]
            yield from alone if in_main_thread else exhaustive(*alone)


@pytest.mark.parametrize(("program", "ending", "states"), [*_cases()])
def test_a_program_ends_within_half_a_second(
    holding: FakeServer, refusing: FakeServer, program: str, ending: str, states: list[str]
) -> None:
    command = [sys.executable, "-c", program, holding.address, refusing.address, ending, *states]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert sorted(process.stdout.readline().decode().strip() for _ in states) == sorted(states)
        for server, requests in ((holding, _HELD), (refusing, _REFUSED)):
            _wait_for(server, sum(requests.get(state, 0) for state in states))
        time.sleep(0.1)  # The refusals reach the client, and the main thread waits.
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


def _wait_for(server: FakeServer, requests: int) -> None:
    end_s = time.monotonic() + 30
    while len(server.requests) < requests:
        assert time.monotonic() < end_s
        time.sleep(0.01)
