"""Open a bundle for serving: choose provider, precision and graph, and check the graph against PyTorch's outputs."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from headwaiter_proto.encoder_pb2 import (
    ISOLATION_MIXED,
    ISOLATION_ONE_LENGTH,
    ISOLATION_ONE_SEQUENCE,
    PRECISION_BF16,
    PRECISION_FP16,
    PRECISION_FP32,
    PRECISION_INT8,
    Precision,
)
from headwaiter_proto.manifest_pb2 import (
    LOWERING_PACKED_CPU,
    LOWERING_PACKED_CUDA,
    LOWERING_PADDED,
    Graph,
    Manifest,
    Parity,
)
from headwaiter_server.runtime.attention_routes import PackedAttention, padded_attention
from headwaiter_server.runtime.bundle import Bundle, naming
from headwaiter_server.runtime.errors import (
    BundleRefused,
    GraphMissing,
    LongestSequenceRefused,
    ModelRefused,
    NoDriver,
    NotEnoughMemory,
    ProviderUnavailable,
    ToleranceExceeded,
    one_line,
)
from headwaiter_server.runtime.golden_reader import Golden
from headwaiter_server.runtime.graph import EncoderGraph, Provider, Turn, at_once
from headwaiter_server.runtime.graph_file import check_graph, structure_of
from headwaiter_server.runtime.memory import available_bytes, cell_values, longest_sequence_bytes
from headwaiter_server.runtime.numeric_tolerances import FLOAT16_MAX, Difference, violation
from headwaiter_server.runtime.packing import PackedBatch, pack
from headwaiter_server.runtime.self_check import check_golden, keeps_apart
from headwaiter_server.runtime.shape_buckets import most_padded_tokens

log = logging.getLogger(__name__)

_MIB = 1 << 20

_PRECISIONS: dict[str, Precision] = {
    "fp32": PRECISION_FP32,
    "fp16": PRECISION_FP16,
    "bf16": PRECISION_BF16,
    "int8": PRECISION_INT8,
}
# What a message advises if a graph is missing or wrong.
_OTHER_PRECISION = (
    "choose another --provider, another --precision (for one model of --models: `precision` in its settings.json), or "
    "export the model again"
)
_PACKED_LAYOUTS = {"cuda": LOWERING_PACKED_CUDA, "cpu": LOWERING_PACKED_CPU}
# On a GPU, fp16 is several times faster than fp32, and its outputs stay within their tolerance.
_DEFAULT_PRECISION: dict[Provider, Precision] = {"cuda": PRECISION_FP16, "cpu": PRECISION_FP32}


class Resources(NamedTuple):
    """The hardware resources that a session may use.

    Attributes:
        threads: threads of the CPU provider; None lets ONNX Runtime use one per physical core.
        device: number of the GPU.
        max_gpu_bytes: maximum GPU memory for weights and activations; 0 for no limit.
        turn: see `EncoderGraph.turn`.
    """

    threads: int | None
    device: int = 0
    max_gpu_bytes: int = 0
    turn: Turn = at_once


@dataclass(frozen=True, eq=False)
class ModelDescription:
    """One graph of a bundle, checked on a provider, without the session that runs it.

    Only the worker of a device owns a session, so that unloading the model frees the session's memory at once.

    Attributes:
        probe: a batch of one short golden input, to test whether a device still works.
        graph_file: file name of the graph in the bundle.
        structure: see `structure_of`.
        results_digest: digest of what decides the results.
        fallback_reason: why `auto` chose the CPU instead of CUDA; empty without a fallback.
        self_check: differences from PyTorch on the golden inputs, measured at start-up.
        self_check_sequences: number of golden inputs.
        parity: differences from PyTorch, measured by the export.
        longest_sequence_bytes: predicted memory of one longest sequence on the CPU; 0 on a GPU, where this memory is
            reserved at start-up.
    """

    bundle: Bundle
    probe: PackedBatch
    graph_file: str
    structure: str
    results_digest: str
    precision: Precision
    provider: Provider
    fallback_reason: str
    self_check: Difference
    self_check_sequences: int
    parity: Parity
    resources: Resources
    longest_sequence_bytes: int

    @property
    def cost_conditions(self) -> tuple[object, ...]:
        """What decides how long batches take; models for which this is equal have the same cost."""
        resources = self.resources._replace(turn=at_once)
        return self.structure, self.bundle.manifest.max_tokens, self.provider, resources

    def open_on(self, device: int, turn: Turn = at_once) -> "Model":
        """Load and check the same graph in another session, on a device of the same provider.

        `EncoderGraph` describes `turn`.

        Raises:
            BundleChanged: a file is not the one that was checked when the bundle was opened.
            BundleRefused: ONNX Runtime cannot run the graph.
            ProviderUnavailable: the device cannot run the graph.
            ToleranceExceeded: the outputs differ too much from PyTorch's.
        """
        resources = self.resources._replace(device=device, turn=turn)
        (listed,) = (graph for graph in self.bundle.manifest.graphs if graph.file == self.graph_file)
        graph, *_ = _open_checked(self.bundle, self.bundle.golden(), listed, self.provider, resources)
        return Model(graph=graph, **self._fields())

    def _fields(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(ModelDescription)}


@dataclass(frozen=True, eq=False)
class Model(ModelDescription):
    """One graph of a bundle, loaded on a provider and checked there."""

    graph: EncoderGraph

    def description(self) -> ModelDescription:
        """Return the model without its session."""
        return ModelDescription(**self._fields())


def open_model(
    folder: Path,
    provider: Literal["auto", "cuda", "cpu"],
    precision: Literal["auto", "fp32", "fp16", "bf16", "int8"],
    threads: int | None,
    device: int = 0,
    max_gpu_bytes: int = 0,
    turn: Turn = at_once,
    max_tokens: int = 0,
    sessions: int = 1,
) -> Model:
    """Open a bundle, load the graph for a provider and precision, and check the graph on the golden inputs.

    The provider `auto` is CUDA if CUDA works, else the CPU. The precision `auto` is fp16 on CUDA and fp32 on the CPU;
    on CUDA it is also fp32 if the bundle has no fp16 graph. A bundle of an ONNX file has the precision of the file.
    `max_tokens` is the length of the longest sequence to accept; 0 stands for the model's own maximum. `sessions` is
    the number of sessions that will share the host's memory. `Resources` describes the other arguments.

    Raises:
        BundleRefused: the bundle is missing or damaged.
        GraphMissing: the bundle has no graph for the provider and precision.
        ProviderUnavailable: `cuda` was requested and does not work on this host.
        ToleranceExceeded: the outputs differ too much from PyTorch's.
        NotEnoughMemory: the weights and the longest sequence do not fit in the host's memory.
    """
    bundle = Bundle.open(folder)
    if max_tokens:
        bundle.limit_tokens(max_tokens)
    resources = Resources(threads, device, max_gpu_bytes, turn)
    of_cpus = {PRECISION_BF16, PRECISION_INT8}
    if provider == "auto" and (
        _PRECISIONS.get(precision) in of_cpus or of_cpus.issuperset(graph.precision for graph in bundle.manifest.graphs)
    ):
        provider = "cpu"  # Only the CPU runs these precisions, so choosing the CPU is not a fallback.
    if provider != "auto":
        return _open_on(bundle, provider, precision, resources, sessions)
    try:
        return _open_on(bundle, "cuda", precision, resources, sessions)
    except (GraphMissing, ProviderUnavailable) as unavailable:
        # On a host without a GPU, the CPU is what the operator expects.
        level = logging.INFO if isinstance(unavailable, NoDriver) else logging.WARNING
        log.log(level, "running on the CPU: %s", unavailable)
        return replace(_open_on(bundle, "cpu", precision, resources, sessions), fallback_reason=str(unavailable))


def _open_on(bundle: Bundle, provider: Provider, precision: str, resources: Resources, sessions: int) -> Model:
    listed = find_graph(bundle, provider, precision)
    if provider == "cpu":
        _check_memory(bundle, listed, sessions)
    golden = bundle.golden()
    graph, structure, measured = _open_checked(bundle, golden, listed, provider, resources)
    padding = bundle.manifest.padding
    # The export measured this on a CPU, and in fp32 for the fp16 graph of a module.
    may_share = provider == "cuda" and padding.isolation in (ISOLATION_MIXED, ISOLATION_ONE_LENGTH)
    if may_share and not keeps_apart(graph, golden, padding.isolation):
        log.warning("%s: sequences of a batch change each other's results on CUDA, so each runs alone", bundle.folder)
        padding.isolation = ISOLATION_ONE_SEQUENCE
    in_blocks = _attends_in_blocks(bundle.manifest, listed.precision, in_onnx_runtime=graph.attends_in_blocks)
    longest_bytes = longest_sequence_bytes(bundle.manifest, attends_in_blocks=in_blocks)
    return Model(
        bundle=bundle,
        graph=graph,
        probe=pack([min(golden.sequences, key=len)]),
        graph_file=listed.file,
        structure=structure,
        results_digest=bundle.results_digest(listed, golden),
        precision=listed.precision,
        provider=provider,
        fallback_reason="",
        self_check=measured,
        self_check_sequences=len(golden.sequences),
        parity=bundle.parity(),
        resources=resources,
        longest_sequence_bytes=longest_bytes if provider == "cpu" else 0,
    )


def predicted_bytes(bundle: Bundle, graph: Graph, sessions: int) -> tuple[int, int]:
    """Return the bytes of the weights, and of one longest sequence on the CPU, in all sessions."""
    weights = sum(file.size_bytes for file in bundle.manifest.files if file.name == graph.weights_file) * sessions
    if graph.precision == PRECISION_BF16:
        weights += weights // 2  # OpenVINO keeps the weights in float32 mapped, and copies them to bf16.
    in_blocks = _attends_in_blocks(bundle.manifest, graph.precision, in_onnx_runtime=True)
    return weights, longest_sequence_bytes(bundle.manifest, attends_in_blocks=in_blocks) * sessions


def _attends_in_blocks(manifest: Manifest, precision: Precision, *, in_onnx_runtime: bool) -> bool:
    """Return whether attention holds few scores at once; OpenVINO, in bf16, holds all with a bias in each head."""
    if precision != PRECISION_BF16:
        return in_onnx_runtime
    return manifest.bias_heads <= 1 and not manifest.distance_products


def _check_memory(bundle: Bundle, graph: Graph, sessions: int) -> None:
    """Refuse a model that does not fit, before its weights take memory that the served models need."""
    weights, longest = predicted_bytes(bundle, graph, sessions)
    available = available_bytes()
    if available is not None and weights + longest > available:
        raise NotEnoughMemory(
            f"{bundle.folder} needs about {(weights + longest) / _MIB:,.0f} MiB ({weights / _MIB:,.0f} MiB for its "
            f"weights, {longest / _MIB:,.0f} MiB for its longest sequence), and {available / _MIB:,.0f} MiB are "
            "available: unload another model, or give the server more memory"
        )


def _open_checked(
    bundle: Bundle, golden: Golden, listed: Graph, provider: Provider, resources: Resources
) -> tuple[EncoderGraph, str, Difference]:
    """Load a graph and check it on the golden inputs; return it, its structure, and its difference from PyTorch."""
    path, precision = bundle.folder / listed.file, listed.precision
    attention = _packed_attention(bundle.manifest, precision)
    try:
        with bundle.private_copy(listed.file, listed.weights_file) as folder:
            content = (folder / listed.file).read_bytes()
            graph = EncoderGraph.open(
                folder / listed.file, provider, *resources, attention=attention, bf16=precision == PRECISION_BF16
            )
        with naming(path):
            check_graph(graph, content, bundle.manifest)
        graph.sparse = bundle.manifest.sparse
        if provider == "cuda":
            _check_score_arrays(bundle.manifest, graph)
        measured = check_golden(
            graph, golden, normalized=bundle.manifest.normalized, isolation=bundle.manifest.padding.isolation
        )
    except ModelRefused:
        raise
    except Exception as error:
        if provider == "cuda":
            # The file matches its checksum, so the cause is mostly the GPU, its memory or its driver.
            raise ProviderUnavailable(
                f"CUDA cannot run {path.name} ({one_line(error)}): free GPU memory, lower --max-sequence-tokens, "
                "update the driver, or export the model again"
            ) from error
        runtime, remedy = "ONNX Runtime", "export the model again"
        if precision == PRECISION_BF16:
            runtime, remedy = "OpenVINO", "choose another --precision"
        raise BundleRefused(f"{runtime} cannot run {path} ({one_line(error)}): {remedy}") from error
    if problem := violation(measured, precision):
        raise ToleranceExceeded(
            f"{path} on {provider} fails the self-check on the bundle's golden inputs ({problem}): {_OTHER_PRECISION}"
        )
    return graph, structure_of(content), measured


def _packed_attention(manifest: Manifest, precision: Precision) -> PackedAttention | None:
    """Return what a CUDA graph's nodes PackedMultiHeadAttention compute; None if the manifest has no head sizes."""
    if not manifest.head_dim:
        return None
    return padded_attention(
        half=precision == PRECISION_FP16,
        head_dim=manifest.head_dim,
        value_dim=manifest.value_dim,
        attention_bias=manifest.bias_heads > 0,
    )


def _check_score_arrays(manifest: Manifest, graph: EncoderGraph) -> None:
    """Refuse a model whose longest sequence has more scores, or a larger bias, than the kernels can compute."""
    heads = cell_values(manifest) if graph.route.pads else manifest.bias_heads
    if manifest.distance_products and graph.route.pads:
        # The products with vectors of distances are [H, N, 2N].
        heads *= 2
    if not heads or manifest.max_tokens <= (most := most_padded_tokens(heads)):
        return
    raise LongestSequenceRefused(
        f"{manifest.name} accepts {manifest.max_tokens:,} tokens, and an attention layer needs an array of {heads} × "
        f"{manifest.max_tokens:,}² numbers for this length, but ONNX Runtime's CUDA kernels compute at most 2³¹ − 1: "
        f"start with --max-sequence-tokens {most} or less"
    )


def find_graph(bundle: Bundle, provider: Provider, precision: str) -> Graph:
    """Return the graph of a bundle for a provider and a precision; see `open_model`.

    Raises:
        GraphMissing: the bundle has no such graph.
    """
    graphs = _graphs_for(provider, bundle.manifest.graphs)
    wanted = _PRECISIONS.get(precision, _DEFAULT_PRECISION[provider])
    if wanted in graphs:
        return graphs[wanted]
    is_padded = any(graph.lowering == LOWERING_PADDED for graph in bundle.manifest.graphs)
    if not graphs:
        remedy = "an ONNX file in fp32 or fp16" if is_padded else f"the model with --graphs packed-{provider}"
        raise GraphMissing(
            f"{bundle.folder} was exported without graphs for {provider}: choose another --provider, or export {remedy}"
        )
    names, largest, reason = {value: name for name, value in _PRECISIONS.items()}, bundle.manifest.largest_magnitude, ""
    if (provider, wanted) == ("cuda", PRECISION_FP16) and largest.value > FLOAT16_MAX:
        reason = f", because {largest.name} reaches {largest.value:.6g} and fp16 holds at most {FLOAT16_MAX:.6g}"
    missing = f"{bundle.folder} has no {names[wanted]} graph for {provider}{reason}"
    # Beside packed graphs, int8 is for callers who ask for it; a padded graph in int8 is an ONNX file in int8.
    other = graphs.get(PRECISION_FP32) or (next(iter(graphs.values())) if is_padded else None)
    if precision == "auto" and other is not None:
        log.log(logging.WARNING if reason else logging.INFO, "running in %s: %s", names[other.precision], missing)
        return other
    available = ", ".join(name for name, value in _PRECISIONS.items() if value in graphs)
    # The export writes it on request.
    bf16 = "export the model again with --precision fp32 bf16, or choose another --precision"
    remedy = bf16 if (provider, wanted) == ("cpu", PRECISION_BF16) and not is_padded else _OTHER_PRECISION
    raise GraphMissing(f"{missing} (available: {available}): {remedy}")


def _graphs_for(provider: Provider, listed: Iterable[Graph]) -> dict[Precision, Graph]:
    """Return the graphs that a provider runs, by their precision."""
    padded = {graph.precision: graph for graph in listed if graph.lowering == LOWERING_PADDED}
    if provider == "cuda":
        padded.pop(PRECISION_INT8, None)
    elif PRECISION_FP32 in padded:
        # Slow on CPUs, and compared on none. A file in fp16 alone was compared on a CPU.
        padded.pop(PRECISION_FP16, None)
    return padded or {graph.precision: graph for graph in listed if graph.lowering == _PACKED_LAYOUTS[provider]}
