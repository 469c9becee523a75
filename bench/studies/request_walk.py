"""Count the functions and the files of this project that one Encode of a short text goes through.

Run it with `python -m bench.studies.request_walk`; `--list` prints the functions in the order in which they begin, and
`--bundle` serves another bundle than all-MiniLM-L6-v2. A profile function sees each call from `rpc/endpoint.py` to the
reply, in all threads: first of a server in one process, then of an engine and a front end that talk through their
socket, here in one process. Comprehensions are part of their function. Whatever several calls in a row go through
counts, so that work which only the first call does is left out, and so is work that some calls do by chance.
"""

import argparse
import asyncio
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, FrameType

import grpc

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_server.app import Server
from headwaiter_server.processes import front_end_supervisor
from headwaiter_server.processes.front_end_process import FrontEndProcess
from headwaiter_server.settings.flags import Settings, read_settings
from testbed.minilm import bundle

_ROOT = Path(__file__).parents[2]
_FIRST_FILE = "server/headwaiter_server/rpc/endpoint.py"
_METHOD = "/headwaiter.v1.Encoder/Encode"
_CALLS, _WARM_UP_CALLS = 20, 20
# A file of the project, and the qualified name of a function in it.
Step = tuple[str, str]


class Walk:
    """Notes the functions that begin while a call is answered."""

    def __init__(self) -> None:
        self._steps: dict[Step, None] | None = None
        # Reading a path takes long, so the step of each code object is kept.
        self._known: dict[CodeType, Step | None] = {}

    def start(self) -> None:
        """Note the functions that begin from now on, the first of them in `rpc/endpoint.py`."""
        self._steps = {}

    def stop(self) -> list[Step]:
        """Return the functions in the order in which they began."""
        steps, self._steps = self._steps or {}, None
        return list(steps)

    def note(self, frame: FrameType, event: str, _: object) -> None:
        """Note the beginning of a function; a profile function of `sys.setprofile`."""
        if self._steps is None or event != "call":
            return
        code = frame.f_code
        if code not in self._known:
            self._known[code] = _step_of(code)
        step = self._known[code]
        if step is not None and (self._steps or step[0] == _FIRST_FILE):
            self._steps[step] = None


def _step_of(code: CodeType) -> Step | None:
    """Return the step of a code object; None for code of others, generated code and comprehensions."""
    path = Path(code.co_filename)
    if not path.is_relative_to(_ROOT) or path.parts[len(_ROOT.parts)] not in ("proto", "server"):
        return None
    file = str(path.relative_to(_ROOT))
    if file.endswith(("_pb2.py", "_pb2_grpc.py")) or code.co_name in ("<listcomp>", "<genexpr>", "<dictcomp>"):
        return None
    return file, code.co_qualname


class _InThisProcess:
    """A front end in this process, in place of a process of its own."""

    def __init__(self, engine: socket.socket, http_sockets: Sequence[socket.socket], number: int) -> None:
        # The supervisor closes its own copies, which another process would have inherited.
        front_end = FrontEndProcess([each.dup() for each in http_sockets], f"front end {number}")
        self._serving = asyncio.create_task(front_end.serve(engine.dup()))

    async def wait(self) -> int:
        await self._serving
        return 0

    def kill(self) -> None:
        self._serving.cancel()


async def _start_here(
    engine: socket.socket, http_sockets: Sequence[socket.socket], number: int, settings: Settings
) -> _InThisProcess:
    return _InThisProcess(engine, http_sockets, number)


async def _walk(folder: Path, front_ends: int, walk: Walk) -> list[Step]:
    """Return the steps that each of several calls goes through, in the order of the last call."""
    flags = (str(folder), "--address", "127.0.0.1:0", "--metrics-port", "0", "--front-ends", str(front_ends))
    server = Server(read_settings(list(flags), {}))
    await server.start()
    message = pb.EncodeRequest(texts=pb.Texts(values=["a short text"])).SerializeToString()
    walks: list[list[Step]] = []
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        encode: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(_METHOD)
        for call in range(_WARM_UP_CALLS + _CALLS):
            walk.start()
            await encode(message)
            # The handler ends shortly after the caller has the reply.
            await asyncio.sleep(0.01)
            steps = walk.stop()
            if call >= _WARM_UP_CALLS:
                walks.append(steps)
    await server.drain()
    always = set.intersection(*map(set, walks))
    return [step for step in walks[-1] if step in always]


def main() -> None:
    """Print the number of files and of functions."""
    parser = argparse.ArgumentParser(prog="python -m bench.studies.request_walk", description=__doc__)
    parser.add_argument("--bundle", type=Path, help="the bundle to serve (default: all-MiniLM-L6-v2)")
    parser.add_argument("--list", action="store_true", help="print the functions, in the order in which they begin")
    arguments = parser.parse_args()
    walk = Walk()
    threading.setprofile(walk.note)
    sys.setprofile(walk.note)
    front_end_supervisor.spawn_process = _start_here
    for front_ends in (0, 1):
        steps = asyncio.run(_walk(arguments.bundle or bundle(), front_ends, walk))
        files = {file for file, _ in steps}
        if arguments.list:
            print(*(f"{file}: {name}" for file, name in steps), sep="\n")
        form = "engine and front end" if front_ends else "one process"
        of_server = sum(file.startswith("server/") for file in files)
        print(f"{form}: {len(files)} files ({of_server} of the server) and {len(steps)} functions")


if __name__ == "__main__":
    main()
