"""Run an ONNX graph in an ONNX Runtime session on a CPU or a GPU, or with OpenVINO on a CPU."""

import ctypes
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from headwaiter_proto.rules.sparse import sparse_vectors
from headwaiter_server.runtime.attention_routes import (
    OLDEST_COMPUTE_CAPABILITY,
    SDPA_KERNEL,
    PackedAttention,
    Route,
    served_route,
)
from headwaiter_server.runtime.cuda_graphs import (
    CAPTURE_LOCK,
    Arrays,
    CudaGraphs,
    Upload,
    ignore_captures_elsewhere,
    run_options,
)
from headwaiter_server.runtime.errors import NoDriver, ProviderUnavailable, one_line
from headwaiter_server.runtime.hardware import CUDA_DRIVER, compute_capability, processor_flags
from headwaiter_server.runtime.openvino_session import OpenVinoSession
from headwaiter_server.runtime.packing import TARGET, PackedBatch, Parts
from headwaiter_server.runtime.shape_buckets import GraphShape, feeds_in_buckets, feeds_in_few_shapes

Provider = Literal["cuda", "cpu"]
Result = TypeVar("Result")

_ORT_PROVIDERS = {"cuda": "CUDAExecutionProvider", "cpu": "CPUExecutionProvider"}
# The graph y = Identity(x) on one float, serialised because the server does not import the onnx package.
_IDENTITY = (
    b'\x08\n:7\n\x10\n\x01x\x12\x01y"\x08Identity\x12\x01gZ\x0f\n\x01x\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01'
    b"b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01B\x04\n\x00\x10\x14"
)
# After a batch of at least this many query blocks (a sequence of about 2,800 tokens), or of as many cells in a padded
# graph, ONNX Runtime returns the memory of its arena to the operating system. The next batch must then allocate memory
# again: 60 ms for 100 MiB, which is a tenth of the time of a batch of two blocks, but less than 3 % of the time of a
# batch of eight blocks.
_SHRINKING_BLOCKS = 8
# ONNX Runtime reads this variable when a session opens. If the variable is set, short fp32 batches may run on the
# unfused kernel, which computes padding and overflows with some models.
_SHORT_FP32_VARIABLE = "ORT_MIN_SEQ_LEN_EFFICIENT_ATTENTION_FP32"
_CUDA_PROVIDER_LIBRARY = (
    "onnxruntime_providers_cuda.dll" if sys.platform == "win32" else "libonnxruntime_providers_cuda.so"
)
# Log nothing below "fatal": ONNX Runtime raises the same errors as exceptions.
_LOG_FATAL_ONLY = 4
# In the error of a session whose graph needs the CPU, and therefore cannot run as a CUDA graph.
_REFUSES_CUDA_GRAPHS = "graph capture feature"
# For messages outside a session, for example a warning for each session on CUDA.
ort.set_default_logger_severity(_LOG_FATAL_ONLY)


@dataclass(eq=False, slots=True)
class GraphOutputs:
    """The outputs of a graph for a batch of B sequences and T tokens.

    Attributes:
        pooled: float32 [B, width], not yet scaled to unit length; None for a model without pooling.
        hidden: float32 or float16 [T, width]; None if not requested.
        logits: float32 [1, labels] of each sequence, or [n_i, labels] if the head scores each token; None without a
            head.
        sparse: the entries of each pooled vector; None for a model with dense vectors.
    """

    pooled: NDArray[np.float32] | None
    hidden: NDArray[np.generic] | None
    logits: Sequence[NDArray[np.float32]] | None = None
    sparse: list[NDArray[Any]] | None = None


class Turn(Protocol):
    """Runs a function while no other batch is on the device, and returns the function's result."""

    def __call__(self, run: Callable[[], Result]) -> Result:
        """Run the function."""
        ...


def at_once(run: Callable[[], Result]) -> Result:
    """Run a function in the calling thread."""
    return run()


class EncoderGraph:
    """A loaded graph that takes packed batches, even if the graph itself is padded.

    Attributes:
        turn: runs each batch of a load, to keep other models' batches off the device meanwhile.
        on_gpu: whether a GPU runs the graph.
        sparse: whether `run` also returns the entries of pooled vectors.
        cuda_graphs: the CUDA graphs of small batches, at first none; None if the session cannot have any.
    """

    sparse = False
    cuda_graphs: CudaGraphs | None = None

    def __init__(
        self,
        session: ort.InferenceSession,
        gpu: int | None = None,
        attention: PackedAttention | None = None,
        turn: Turn = at_once,
        *,
        has_cuda_graphs: bool = False,
    ) -> None:
        """Wrap a session.

        Args:
            session: the session, or an `OpenVinoSession`, for which packed batches are rounded up to few shapes.
            gpu: number of the GPU that runs the session; None for the CPU. For a GPU, packed batches are rounded up to
                shape buckets, so that they reuse memory.
            attention: what the graph's nodes PackedMultiHeadAttention compute, if it has such nodes; None if unknown.
            turn: see the attribute.
            has_cuda_graphs: whether the session was opened with CUDA graphs.
        """
        self.turn = turn
        self._inputs = [node.name for node in session.get_inputs()]
        self._outputs = {node.name for node in session.get_outputs()}
        self._takes_target = any(name.startswith(TARGET) for name in self._inputs)
        self._session = session
        self.on_gpu = gpu is not None
        # A padded graph computes positions from N; a rounded N could exceed the positions that the model knows.
        self._is_padded = "attention_mask" in self._inputs
        self._uses_shape_buckets = self.on_gpu and not self._is_padded
        self._uses_few_shapes = isinstance(session, OpenVinoSession)
        self._small_outputs = [name for name in ("pooled", "logits", "token_logits") if name in self._outputs]
        self._has_cuda_graphs = has_cuda_graphs
        if has_cuda_graphs and gpu is not None and self._small_outputs and not (self._is_padded or self._takes_target):
            self.cuda_graphs = CudaGraphs(session, gpu)
        self._attention = attention
        self._compute_capability = OLDEST_COMPUTE_CAPABILITY
        if attention is not None and gpu is not None:
            self._compute_capability = compute_capability(gpu) or OLDEST_COMPUTE_CAPABILITY

    @classmethod
    def open(
        cls,
        path: Path,
        provider: Provider,
        threads: int | None = None,
        device: int = 0,
        max_gpu_bytes: int = 0,
        turn: Turn = at_once,
        attention: PackedAttention | None = None,
        *,
        bf16: bool = False,
    ) -> "EncoderGraph":
        """Load a graph on one provider, without falling back to another.

        Args:
            path: the ONNX file; its external weights are in the same folder.
            provider: the only provider that runs the graph.
            threads: CPU threads inside one operator; None lets ONNX Runtime use one per physical core.
            device: number of the GPU, for CUDA.
            max_gpu_bytes: maximum GPU memory for weights and activations; 0 for no limit.
            turn: see the attribute.
            attention: as in `EncoderGraph`.
            bf16: whether OpenVINO computes the graph in bf16, on the CPU; ONNX Runtime computes other graphs.

        Raises:
            ProviderUnavailable: the provider does not work on this host.
        """
        if bf16:
            return cls(OpenVinoSession(path, threads), None, attention, turn)
        options = session_options(threads)
        if provider == "cpu":
            return cls(open_session(path, provider, options), None, attention, turn)
        try:
            session = open_session(path, provider, options, device, max_gpu_bytes, cuda_graphs=True)
        except Exception as error:
            if _REFUSES_CUDA_GRAPHS not in str(error):
                raise
            return cls(open_session(path, provider, options, device, max_gpu_bytes), device, attention, turn)
        return cls(session, device, attention, turn, has_cuda_graphs=True)

    def widths(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return the last dimension of each input and of each output; 0 if it depends on the batch."""
        inputs, outputs = (
            {node.name: node.shape[-1] if isinstance(node.shape[-1], int) else 0 for node in nodes}
            for nodes in (self._session.get_inputs(), self._session.get_outputs())
        )
        return inputs, outputs

    @property
    def hidden_is_optional(self) -> bool:
        """Whether the graph gives hidden rows, and something else."""
        return "hidden" in self._outputs and len(self._outputs) > 1

    @property
    def route(self) -> Route:
        """The attention kernel, which is the same for batches of any length; unfused if the head sizes are unknown.

        If a graph gathers the attention of some layers, which alone read `scatter`, they count: those from a target to
        its source, and some of older exports.
        """
        names = {name.removeprefix(TARGET) for name in self._inputs}
        if "cu_seqlens" not in names or "scatter" in names:
            return Route.GATHERED
        if self._attention is None:
            return Route.UNFUSED
        return served_route(self._attention, self._compute_capability)

    @property
    def variable_length(self) -> bool:
        """Whether attention computes no padding."""
        return not self.route.pads

    @property
    def attends_in_blocks(self) -> bool:
        """Whether attention computes the scores of one query block at a time; graphs of older exports do not."""
        return not {"query_blocks", f"{TARGET}query_blocks"}.isdisjoint(self._inputs)

    def prepare(self, batch: PackedBatch) -> PackedBatch:
        """Return the batch with the graph's inputs; one thread may prepare a batch while another thread runs one."""
        upload = self.cuda_graphs.upload(batch, self._inputs) if self.cuda_graphs is not None else None
        return replace(batch, inputs=self._feeds(batch) if upload is None else upload)

    def capture(
        self, batch: PackedBatch, disagreement: Callable[[GraphOutputs, GraphOutputs], str | None]
    ) -> GraphShape | None:
        """Capture a CUDA graph for batches of this shape; see `CudaGraphs.capture`."""
        if (graphs := self.cuda_graphs) is None:
            return None

        def of_batch(replayed: Arrays, ordinary: Arrays) -> str | None:
            return disagreement(*(self._outputs_of(batch, dict(values)) for values in (replayed, ordinary)))

        with CAPTURE_LOCK:
            return self.turn(lambda: graphs.capture(batch, self._inputs, self._small_outputs, of_batch))

    def _feeds(self, batch: PackedBatch) -> Mapping[str, NDArray[np.generic]]:
        if self._uses_few_shapes:
            return feeds_in_few_shapes(batch, self._inputs)
        return feeds_in_buckets(batch, self._inputs) if self._uses_shape_buckets else batch.feeds(self._inputs)

    def run(self, batch: PackedBatch, *, hidden: bool) -> GraphOutputs:
        """Run the graph on a batch; prepare the batch first if `prepare` was not called.

        If `hidden` is true or the graph has no other output, also return a copy of the hidden rows, if it has them.
        """
        inputs = batch.inputs if batch.inputs is not None else self.prepare(batch).inputs
        assert inputs is not None
        if self.on_gpu:
            ignore_captures_elsewhere()
        if isinstance(inputs, Upload) and not hidden:
            return self._outputs_of(batch, inputs.run())
        names = self._small_outputs.copy()
        if "hidden" in self._outputs and (hidden or not names):
            names.append("hidden")
        # A graph has no hidden rows, and its shape more dummies than necessary.
        feeds = self._feeds(batch) if isinstance(inputs, Upload) else inputs
        options = run_options() if self._has_cuda_graphs else None
        shrinks = self.attends_in_blocks or (self._is_padded and not self.on_gpu)
        if shrinks and batch.query_blocks >= _SHRINKING_BLOCKS:
            options = options or ort.RunOptions()
            options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        return self._outputs_of(batch, dict(zip(names, self._session.run(names, feeds, options), strict=True)))

    def _outputs_of(self, batch: PackedBatch, values: dict[str, NDArray[Any]]) -> GraphOutputs:
        """Return the outputs of the batch's own sequences, without padding."""
        for name in ("hidden", "token_logits"):
            if name in values and values[name].ndim == 3:
                values[name] = (Parts.of(batch) if self._takes_target else batch).drop_padding(values[name])
        # Dummy sequences are the last of the batch.
        pooled, rows = values.get("pooled"), values.get("hidden")
        vectors = None if pooled is None else pooled[: batch.sequences]
        return GraphOutputs(
            vectors,
            None if rows is None else rows[: batch.tokens],
            _logits_of_sequences(batch, values),
            sparse_vectors(vectors) if self.sparse and vectors is not None else None,
        )


def _logits_of_sequences(batch: PackedBatch, values: Mapping[str, NDArray[Any]]) -> list[NDArray[np.float32]] | None:
    if "token_logits" in values:
        return batch.split(values["token_logits"][: batch.tokens])
    return list(values["logits"][: batch.sequences, None]) if "logits" in values else None


def open_session(
    graph: Path | bytes,
    provider: Provider,
    options: ort.SessionOptions,
    device: int = 0,
    max_gpu_bytes: int = 0,
    *,
    cuda_graphs: bool = False,
) -> ort.InferenceSession:
    """Open a session on an ONNX file or a serialised graph, with options from `session_options`.

    No other function may open a session, because results in int8 depend on the options. In a session with
    `cuda_graphs`, each run needs `run_options`. Other arguments as in `EncoderGraph.open`.
    """
    opened = str(graph) if isinstance(graph, Path) else graph
    if provider == "cpu":
        return _open_on_provider(opened, provider, options, device, max_gpu_bytes)
    os.environ.pop(_SHORT_FP32_VARIABLE, None)
    ignore_captures_elsewhere()
    with CAPTURE_LOCK:
        require_cuda(device, max_gpu_bytes)
        return _open_on_provider(opened, provider, options, device, max_gpu_bytes, cuda_graphs)


def session_options(threads: int | None, vnni: bool | None = None) -> ort.SessionOptions:
    """Return the session options of every graph.

    Args:
        threads: as in `EncoderGraph.open`.
        vnni: whether int8 products may use the kernels that are exact only on processors with VNNI; None asks the
            processor.
    """
    options = ort.SessionOptions()
    options.log_severity_level = _LOG_FATAL_ONLY
    if threads is not None:
        options.intra_op_num_threads = threads
    # ONNX Runtime would store a memory pattern for each set of input shapes, but batches rarely repeat their shapes.
    options.enable_mem_pattern = False
    if vnni is None:
        vnni = any("vnni" in flag for flag in processor_flags())
    if not vnni:
        # Without VNNI, the default int8 kernels overflow when they add two products in 16 bits.
        options.add_session_config_entry("session.x64quantprecision", "1")
    # Threads that spin between batches would take CPU time from the threads that handle requests.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    # This optimization of convolutions crashes the process on some graphs in float16, also without a convolution
    # (https://github.com/microsoft/onnxruntime/issues/28392).
    options.add_session_config_entry("optimization.disable_specified_optimizers", "NchwcTransformer")
    return options


def _provider_options(
    provider: Provider, device: int, max_gpu_bytes: int, cuda_graphs: bool
) -> tuple[str, dict[str, str]]:
    """Return ONNX Runtime's name and options for a provider."""
    if provider == "cpu":
        return _ORT_PROVIDERS["cpu"], {}
    options = {
        "device_id": str(device),
        # By default, CUDA multiplies fp32 in TF32, whose mantissa has only 10 bits.
        "use_tf32": "0",
        # By default, float32 attention below 256 tokens is unfused: it computes padding, and each layer waits for the
        # GPU.
        "sdpa_kernel": str(SDPA_KERNEL),
        # The arena grows by doubling. With "kSameAsRequested" it keeps small regions, which later shapes do not fit.
        "arena_extend_strategy": "kNextPowerOfTwo",
    }
    if max_gpu_bytes:
        options["gpu_mem_limit"] = str(max_gpu_bytes)
    if cuda_graphs:
        options["enable_cuda_graph"] = "1"
    return _ORT_PROVIDERS["cuda"], options


def require_cuda(device: int = 0, max_gpu_bytes: int = 0) -> None:
    """Check that CUDA works, because ONNX Runtime falls back to the CPU without an error.

    Raises:
        ProviderUnavailable: CUDA does not work; the message says why.
    """
    if _ORT_PROVIDERS["cuda"] not in ort.get_available_providers():
        raise ProviderUnavailable("the installed ONNX Runtime has no CUDA provider: pip install 'headwaiter[cuda]'")
    try:
        ctypes.CDLL(CUDA_DRIVER)
    except OSError:
        raise NoDriver(
            f"there is no NVIDIA driver on this host ({CUDA_DRIVER} cannot be loaded): "
            "install a driver, give the container a GPU, or use --provider cpu"
        ) from None
    ort.preload_dlls()
    # A graph with CUDA-only operators would fail with an error about operators, which hides the cause.
    try:
        _open_on_provider(_IDENTITY, "cuda", session_options(1), device, max_gpu_bytes)
    except ProviderUnavailable:
        raise
    except Exception as error:
        raise ProviderUnavailable(
            f"CUDA cannot use GPU {device} ({one_line(error)}): choose another GPU, free GPU memory, or "
            "update the driver"
        ) from error


def _open_on_provider(
    graph: str | bytes,
    provider: Provider,
    options: ort.SessionOptions,
    device: int,
    max_gpu_bytes: int,
    cuda_graphs: bool = False,
) -> ort.InferenceSession:
    name, provider_options = _provider_options(provider, device, max_gpu_bytes, cuda_graphs)
    # Otherwise a session that cannot open, or a run that fails, would open the session on the CPU.
    session = ort.InferenceSession(graph, options, providers=[(name, provider_options)], enable_fallback=0)
    # Without CUDA's libraries, ONNX Runtime opens the session on the CPU. The caller decides about a fallback.
    if session.get_providers()[0] != name:
        raise ProviderUnavailable(
            f"ONNX Runtime could not load its CUDA provider ({_load_error()}): install the NVIDIA libraries with "
            "pip install 'headwaiter[cuda]' and a driver new enough for CUDA 13"
        )
    return session


def _load_error() -> str:
    """Return why the library of the CUDA provider cannot be loaded, which ONNX Runtime only logs."""
    try:
        ctypes.CDLL(str(Path(ort.__file__).parent / "capi" / _CUDA_PROVIDER_LIBRARY))
    except OSError as error:
        return one_line(error)
    return "no reason is known"
