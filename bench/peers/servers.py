"""The servers of the comparison: how each is started, called and stopped."""

import asyncio
import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psutil

from bench.peers import calls
from bench.peers.calls import Api
from bench.peers.environments import (
    EXPORTED,
    GGUF,
    LLAMA_CPP,
    OPENVINO,
    PROGRAMS,
    VLLM,
    environment,
    packages,
    pins,
    version,
)
from bench.peers.model import BUNDLE, MAX_BATCH, PORT
from bench.peers.sentences import Sentence
from bench.processes import SERVER_CORE, cpu_s
from testbed.minilm import ROOT, bundle, checkpoint, command_path
from testbed.server_process import free_port

_START_TIMEOUT_S, _STOP_TIMEOUT_S, _POLL_S = 180.0, 20.0, 0.2
# Seconds in which a server that listens must answer its first request.
_FIRST_ANSWER_S = 30.0
# Processes that compute while a server starts under load.
_BUSY_PROCESSES = 4
_ON_SERVER_CORE = ("taskset", "-c", str(SERVER_CORE))


class Command(NamedTuple):
    """How a server is started: its command, its working folder and its environment variables."""

    arguments: list[str]
    folder: Path
    variables: Mapping[str, str]


@dataclass(frozen=True)
class Peer:
    """A server with its setting.

    Attributes:
        name: name of the server in the table.
        batches: how the server batches, in the table.
        api: how the server is called.
        command: returns how the server is started on a port.
        folder: folder of the server's requirements in bench/peers; empty for a server that needs no others.
        package: the package on PyPI whose version the table shows.
        max_batch: maximum number of sequences in a batch; 1 turns batching off.
        precision: the data type that the server computes in, in the server's own words.
        min_cosine: the lowest cosine similarity to Headwaiter's vectors that the server may have.
        starts_under_load: whether other processes compute on the server's core while the server starts.
    """

    name: str
    batches: str
    api: Api
    command: "Callable[[Peer, int], Command]"
    folder: str = ""
    package: str = ""
    max_batch: int = 32
    precision: str = "fp32"
    min_cosine: float = 0.9999
    starts_under_load: bool = False

    @property
    def label(self) -> str:
        """The name with the version, and the setting."""
        return f"{self.version}, {self.batches}, {self.api.takes}"

    @property
    def version(self) -> str:
        """The name with the version."""
        return f"{self.name} {version(pins(self.folder), self.package)}" if self.package else self.name


def _headwaiter(peer: Peer, port: int) -> Command:
    served, variables = bundle(), {}
    if peer.folder:
        made = environment(peer.folder)
        served, variables = made / EXPORTED, {"PYTHONPATH": str(packages(made))}
    flags = ["--metrics-port", str(free_port()), "--provider", "cpu", "--threads", "1", "--front-ends", "0"]
    flags += ["--address", f"127.0.0.1:{port}", "--precision", peer.precision]
    return Command([command_path("headwaiter-server"), str(served), *flags], ROOT, variables)


def _minimal(_: Peer, port: int) -> Command:
    address = ["--address", f"127.0.0.1:{port}"]
    return Command([sys.executable, "-m", "bench.servers.minimal", str(bundle()), *address], ROOT, {})


def _program(peer: Peer, port: int) -> Command:
    """Return the command of a server that a program in bench/peers makes of a library."""
    made = environment(peer.folder)
    variables = _variables(made) | {BUNDLE: str(bundle()), PORT: str(port), MAX_BATCH: str(peer.max_batch)}
    arguments = [str(made / "bin" / "python"), str(PROGRAMS / peer.folder / "server.py")]
    # infinity takes a model with a relative path only; MLServer writes into its working folder.
    return Command(arguments, made / EXPORTED if (made / EXPORTED).is_dir() else made, variables)


def _vllm(peer: Peer, port: int) -> Command:
    made = environment(peer.folder)
    variables = _variables(made) | {"VLLM_CPU_OMP_THREADS_BIND": str(SERVER_CORE), "VLLM_NO_USAGE_STATS": "1"}
    # By default, vLLM takes the limit of sentence-transformers, 256 tokens.
    variables |= {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1", "VLLM_CACHE_ROOT": str(made / "home")}
    arguments = [str(made / "bin" / "vllm"), "serve", str(checkpoint()), "--served-model-name", "texts"]
    arguments += ["--runner", "pooling", "--dtype", peer.precision, "--max-model-len", "512"]
    # Also on a CPU, the share of the memory that vLLM requires.
    arguments += ["--gpu-memory-utilization", "0.5", "--host", "127.0.0.1", "--port", str(port)]
    return Command(arguments, made, variables)


def _llama_cpp(peer: Peer, port: int) -> Command:
    made = environment(peer.folder)
    arguments = [str(made / "bin" / "llama-server"), "--model", GGUF.format(peer.precision), "--embedding"]
    arguments += ["--pooling", "mean", "--threads", "1", "--threads-batch", "1"]
    # A place for each requester, each of which takes the model's most tokens.
    arguments += ["--parallel", str(peer.max_batch), "--ctx-size", str(peer.max_batch * 512)]
    return Command([*arguments, "--host", "127.0.0.1", "--port", str(port)], made, {})


def _variables(made: Path) -> dict[str, str]:
    """Return the environment variables of a server with an environment of its own."""
    return {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        # Triton's processes load Python's shared library, which may not be that of the operating system.
        "LD_LIBRARY_PATH": str(sysconfig.get_config_var("LIBDIR")),
        "PYTRITON_HOME": str(made / "home"),
        "HF_HOME": str(made / "home"),
        "HF_HUB_OFFLINE": "1",
        "DO_NOT_TRACK": "1",
    }


_OURS = partial(Peer, "Headwaiter", api=calls.HEADWAITER, command=_headwaiter)
HEADWAITER = _OURS(batches="packed")
_TRITON = partial(Peer, "Triton (PyTriton)", command=_program, folder="triton", package="nvidia-pytriton")
_INFINITY = partial(Peer, "infinity", api=calls.INFINITY, command=_program, folder="infinity", package="infinity_emb")
_MLSERVER = partial(Peer, "MLServer", api=calls.INFER_TEXTS, command=_program, folder="mlserver", package="mlserver")
_MOSEC = partial(Peer, "mosec", api=calls.MOSEC, command=_program, folder="mosec", package="mosec")
_LITSERVE = partial(Peer, "LitServe", api=calls.LITSERVE, command=_program, folder="litserve", package="litserve")
_VLLM = partial(Peer, "vLLM", api=calls.OPENAI, command=_vllm, folder=VLLM, package="vllm-cpu")
_LLAMA_CPP = partial(
    Peer, "llama.cpp", api=calls.OPENAI, command=_llama_cpp, folder=LLAMA_CPP, package="llama_cpp_python"
)
# Batches of at most 32: infinity's default, and the number of requesters. The rest of a setting is in the program.
_PADDED, _OFF = "up to 32, padded", "one by one"
# bf16 keeps 8 bits of a number.
_BF16_COSINE = 0.9998
PEERS = (
    HEADWAITER,
    _OURS(batches="packed, started under load", starts_under_load=True),
    _OURS(batches="packed, bf16", folder=OPENVINO, precision="bf16", min_cosine=_BF16_COSINE),
    _OURS(batches="packed, int8", precision="int8", min_cosine=0.99),
    Peer("grpc.aio server", _OFF, calls.MINIMAL, _minimal),
    _TRITON(batches="up to 32, of one length", api=calls.INFER_IDS),
    _TRITON(batches=_OFF, api=calls.INFER_IDS, max_batch=1),
    _TRITON(batches=_PADDED, api=calls.INFER_TEXTS),
    _INFINITY(batches="up to 32, sorted, padded"),
    _INFINITY(batches=_OFF, max_batch=1),
    _MLSERVER(batches=_PADDED),
    _MLSERVER(batches=_OFF, max_batch=1),
    _MOSEC(batches=_PADDED),
    _MOSEC(batches=_OFF, max_batch=1),
    _LITSERVE(batches=_PADDED),
    _LITSERVE(batches=_OFF, max_batch=1),
    _VLLM(batches="packed, fp32", precision="float32"),
    _VLLM(batches="packed, bf16", precision="bfloat16", min_cosine=_BF16_COSINE),
    _LLAMA_CPP(batches="packed, fp32", precision="f32"),
    _LLAMA_CPP(batches="packed, bf16", precision="bf16", min_cosine=_BF16_COSINE),
)
FOLDERS = tuple(dict.fromkeys(peer.folder for peer in PEERS if peer.folder))


@dataclass(frozen=True)
class Running:
    """A server that answers requests."""

    address: str
    process: psutil.Process

    def cpu_s(self) -> float:
        """Return the CPU seconds of the server, with all its processes."""
        return sum(cpu_s(each.pid) for each in self._processes())

    def memory_mib(self) -> float:
        """Return the memory of the server, with all its processes; pages that processes share count once."""
        return sum(each.memory_full_info().pss for each in self._processes()) / 2**20

    def _processes(self) -> list[psutil.Process]:
        return [self.process, *self.process.children(recursive=True)]


@contextmanager
def running(peer: Peer, first: Sentence, log: Path) -> Iterator[Running]:
    """Start a server on its core, yield it when it answers the first sentence, and stop all its processes.

    Raises:
        RuntimeError: the environment cannot be made, the server exits, or it does not answer.
    """
    port = free_port()
    arguments, folder, variables = peer.command(peer, port)
    own = {name: value for name, value in os.environ.items() if not name.startswith(("HEADWAITER_", "PEER_"))}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*_ON_SERVER_CORE, *arguments],
            cwd=folder,
            env={**own, **variables},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    running = Running(f"127.0.0.1:{port}", psutil.Process(process.pid))
    try:
        with _busy_server_core() if peer.starts_under_load else nullcontext():
            _wait_until_answering(peer.api, running.address, process, first, log)
        yield running
    finally:
        _stop(process)


@contextmanager
def _busy_server_core() -> Iterator[None]:
    """Compute on the server's core."""
    computing = [*_ON_SERVER_CORE, sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(computing) for _ in range(_BUSY_PROCESSES)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _wait_until_answering(
    api: Api, address: str, process: "subprocess.Popen[bytes]", first: Sentence, log: Path
) -> None:
    end_s, problem = time.monotonic() + _START_TIMEOUT_S, "it did not answer"
    while process.poll() is None and time.monotonic() < end_s:
        try:
            asyncio.run(asyncio.wait_for(calls.closed_loop(api, address, [first], 1), _FIRST_ANSWER_S))
            return
        except (RuntimeError, OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            problem = str(error) or type(error).__name__
        time.sleep(_POLL_S)
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    raise RuntimeError(f"{problem}; the server's log ends with: {' '.join(lines[-2:])[-300:]}")


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """Stop a server, and kill the processes that it leaves."""
    try:
        tree = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        tree = []
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_TIMEOUT_S)
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(tree, timeout=2)
    for left in alive:
        with suppress(psutil.NoSuchProcess):
            left.kill()
