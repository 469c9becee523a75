"""One ONNX graph in one ONNX Runtime session."""

import ctypes
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from headwaiter_server.runtime.errors import ProviderUnavailable
from headwaiter_server.runtime.io_binding import DeviceMemorySession
from headwaiter_server.runtime.packing import PackedBatch
from headwaiter_server.runtime.shape_buckets import round_up_to_buckets

Provider = Literal["cuda", "cpu"]

_ORT_PROVIDERS = {"cuda": "CUDAExecutionProvider", "cpu": "CPUExecutionProvider"}
# The smallest graph: y = Identity(x), of one float. What writes graphs is no part of a server.
_IDENTITY = (
    b'\x08\n:7\n\x10\n\x01x\x12\x01y"\x08Identity\x12\x01gZ\x0f\n\x01x\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01'
    b"b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01B\x04\n\x00\x10\x14"
)
# ONNX Runtime's severity 4 is "fatal": what it would log, we raise.
_QUIET = 4


@dataclass(eq=False, slots=True)
class Outputs:
    """What a graph answers to a batch of B sequences and T tokens.

    Attributes:
        pooled: float32 [B, width], not scaled to unit length; None for a model without pooling.
        hidden: float32 or float16 [T, width]; None when it was not asked for.
    """

    pooled: NDArray[np.float32] | None
    hidden: NDArray[np.generic] | None


class EncoderGraph:
    """A loaded graph, packed or padded, that takes packed batches."""

    def __init__(self, session: ort.InferenceSession, memory: tuple[str, int] | None = None) -> None:
        """Take over a session.

        Args:
            session: of a graph.
            memory: type and number of a device whose memory the session shall find its inputs in. Packed batches are
                rounded up then, as such memory is scarce. None gives it the host's arrays as they are.
        """
        self._inputs = [node.name for node in session.get_inputs()]
        self._outputs = {node.name for node in session.get_outputs()}
        self._session = session if memory is None else DeviceMemorySession(session, *memory)
        # The cells of a padded graph may have no position beyond the longest sequence.
        self._rounds = memory is not None and "attention_mask" not in self._inputs

    @classmethod
    def open(
        cls, path: Path, provider: Provider, threads: int | None = None, device: int = 0, max_gpu_bytes: int = 0
    ) -> "EncoderGraph":
        """Load a graph on a provider, and on no other.

        Args:
            path: the ONNX file; its external weights lie beside it.
            provider: where it shall run.
            threads: threads inside one operator; None leaves ONNX Runtime its choice, the machine's physical cores.
            device: which GPU, for CUDA.
            max_gpu_bytes: of its memory, for the weights and what batches need; 0 for all there is.

        Raises:
            ProviderUnavailable: this machine cannot run the provider.
        """
        session = open_session(path, provider, session_options(threads), device, max_gpu_bytes)
        return cls(session, None if provider == "cpu" else (provider, device))

    @property
    def pools(self) -> bool:
        """Whether the graph has a pooled output."""
        return "pooled" in self._outputs

    @property
    def variable_length(self) -> bool:
        """Whether its attention takes sequences of any length as they are, rather than gathered to the longest."""
        return "cu_seqlens" in self._inputs

    def run(self, batch: PackedBatch, *, hidden: bool) -> Outputs:
        """Run the graph on a batch.

        Args:
            batch: the packed sequences.
            hidden: return the hidden rows too, which costs their copy; a model without pooling has no other answer.
        """
        names = ["pooled"] * self.pools + ["hidden"] * (hidden or not self.pools)
        fed = round_up_to_buckets(batch) if self._rounds else batch
        values = dict(zip(names, self._session.run(names, fed.feeds(self._inputs)), strict=True))
        pooled, rows = values.get("pooled"), values.get("hidden")
        if rows is not None and rows.ndim == 3:
            rows = batch.drop_padding(rows)
        # What rounding added stands last.
        return Outputs(
            None if pooled is None else pooled[: batch.sequences], None if rows is None else rows[: batch.tokens]
        )


def open_session(
    path: Path, provider: Provider, options: ort.SessionOptions, device: int = 0, max_gpu_bytes: int = 0
) -> ort.InferenceSession:
    """Load a graph as `EncoderGraph.open` does, with options that begin as `session_options`."""
    if provider == "cuda":
        require_cuda(device, max_gpu_bytes)
    return _open(str(path), provider, options, device, max_gpu_bytes)


def session_options(threads: int | None) -> ort.SessionOptions:
    """Return what every session is opened with; threads as in `EncoderGraph.open`."""
    options = ort.SessionOptions()
    options.log_severity_level = _QUIET
    if threads is not None:
        options.intra_op_num_threads = threads
    # Patterns are remembered for each set of shapes, and no two batches have the same.
    options.enable_mem_pattern = False
    if not _has_vnni():
        # ONNX Runtime's usual int8 kernels would add pairs of products in 16 bits, which overflow; these do not.
        options.add_session_config_entry("session.x64quantprecision", "1")
    # Threads that spin between batches would take the cores that answer requests.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return options


def _has_vnni() -> bool:
    """Tell whether the processor multiplies int8 into 32 bits; only Linux says so, elsewhere the answer is no."""
    try:
        return "vnni" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False


def _provider(provider: Provider, device: int, max_gpu_bytes: int) -> tuple[str, dict[str, str]]:
    if provider == "cpu":
        return _ORT_PROVIDERS["cpu"], {}
    options = {
        "device_id": str(device),
        # fp32 means fp32: without this CUDA multiplies in TF32, with 10 bits of mantissa.
        "use_tf32": "0",
        "arena_extend_strategy": "kSameAsRequested",
    }
    if max_gpu_bytes:
        options["gpu_mem_limit"] = str(max_gpu_bytes)
    return _ORT_PROVIDERS["cuda"], options


def require_cuda(device: int = 0, max_gpu_bytes: int = 0) -> None:
    """Find out why CUDA cannot run, before ONNX Runtime falls back in silence.

    Args:
        device: which GPU.
        max_gpu_bytes: of its memory, as for `EncoderGraph.open`.

    Raises:
        ProviderUnavailable: with the reason.
    """
    if _ORT_PROVIDERS["cuda"] not in ort.get_available_providers():
        raise ProviderUnavailable("this build of ONNX Runtime has no CUDA provider: pip install onnxruntime-gpu")
    driver = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        ctypes.CDLL(driver)
    except OSError:
        raise ProviderUnavailable(
            f"there is no NVIDIA driver on this machine ({driver} cannot be loaded): "
            "install one, give the container a GPU, or use --provider cpu"
        ) from None
    ort.preload_dlls()
    # With a graph that the CPU could run: one of CUDA's own operators would fail there, in other words.
    _open(_IDENTITY, "cuda", session_options(1), device, max_gpu_bytes)


def _open(
    graph: str | bytes, provider: Provider, options: ort.SessionOptions, device: int, max_gpu_bytes: int
) -> ort.InferenceSession:
    session = ort.InferenceSession(graph, options, providers=[_provider(provider, device, max_gpu_bytes)])
    # Without CUDA's libraries ONNX Runtime logs a line and runs on the CPU instead; that is for us to decide.
    if session.get_providers()[0] != _ORT_PROVIDERS[provider]:
        raise ProviderUnavailable(
            "ONNX Runtime could not load its CUDA provider: install the NVIDIA libraries with "
            "pip install 'headwaiter[cuda]' and a driver new enough for CUDA 13"
        )
    return session
