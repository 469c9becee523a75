"""Opens a bundle for serving: chooses provider, precision and graph, and proves that the graph keeps the contract."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from headwaiter_proto.encoder_pb2 import PRECISION_FP16, PRECISION_FP32, PRECISION_INT8, Precision
from headwaiter_proto.manifest_pb2 import LOWERING_PACKED_CPU, LOWERING_PACKED_CUDA, Graph, Parity
from headwaiter_server.runtime.bundle import Bundle, Golden
from headwaiter_server.runtime.errors import BundleRefused, GraphMissing, ProviderUnavailable, ToleranceExceeded
from headwaiter_server.runtime.graph import EncoderGraph, Provider
from headwaiter_server.runtime.packing import PackedBatch, pack
from headwaiter_server.runtime.tolerance import Difference, violation
from headwaiter_server.runtime.warmup import check_golden

log = logging.getLogger(__name__)

_PRECISIONS: dict[str, Precision] = {"fp32": PRECISION_FP32, "fp16": PRECISION_FP16, "int8": PRECISION_INT8}
_LOWERINGS = {"cuda": LOWERING_PACKED_CUDA, "cpu": LOWERING_PACKED_CPU}
# On a GPU half precision is several times faster, and the contract says what it costs.
_USUAL_PRECISION: dict[Provider, Precision] = {"cuda": PRECISION_FP16, "cpu": PRECISION_FP32}


class Resources(NamedTuple):
    """What a session may take of the machine.

    Attributes:
        threads: of the CPU provider; None leaves ONNX Runtime its choice.
        device: which GPU.
        max_gpu_bytes: of its memory; 0 for all there is.
    """

    threads: int | None
    device: int = 0
    max_gpu_bytes: int = 0


@dataclass(frozen=True, eq=False)
class Model:
    """A bundle on the provider that runs it.

    Attributes:
        bundle: where it comes from.
        graph: the loaded graph.
        probe: a batch of one short golden input.
        graph_file: the graph's file name in the bundle.
        precision: of the graph.
        provider: where the graph really runs.
        fallback_reason: why that is not the GPU that `auto` prefers; empty when it is, or when nobody asked.
        self_check: the graph's difference to PyTorch, measured on this machine at start-up.
        self_check_sequences: over how many golden inputs.
        parity: the differences that were measured when the bundle was made.
        resources: what its session may take.
    """

    bundle: Bundle
    graph: EncoderGraph
    probe: PackedBatch
    graph_file: str
    precision: Precision
    provider: Provider
    fallback_reason: str
    self_check: Difference
    self_check_sequences: int
    parity: Parity
    resources: Resources

    def open_on(self, device: int) -> EncoderGraph:
        """Open the graph once more, on a device of the same provider, and check it there.

        Raises:
            BundleRefused: the bundle is damaged.
            ProviderUnavailable: the device does not run it.
            ToleranceExceeded: its answers are too far from PyTorch's.
        """
        path, resources = self.bundle.folder / self.graph_file, self.resources._replace(device=device)
        graph, _ = _open_checked(self.bundle, path, self.bundle.golden(), self.provider, self.precision, resources)
        return graph


def open_model(
    folder: Path,
    provider: Literal["auto", "cuda", "cpu"],
    precision: Literal["auto", "fp32", "fp16", "int8"],
    threads: int | None,
    device: int = 0,
    max_gpu_bytes: int = 0,
) -> Model:
    """Open a bundle and check its golden inputs on the very graph that will serve.

    Raises:
        BundleRefused: the bundle is damaged.
        GraphMissing: it has no graph for the provider and precision.
        ProviderUnavailable: `cuda` was asked for and this machine cannot run it.
        ToleranceExceeded: the answers are too far from PyTorch's.
    """
    bundle = Bundle.open(folder)
    golden = bundle.golden()
    resources = Resources(threads, device, max_gpu_bytes)
    fallback_reason = ""
    if provider == "auto" and precision == "int8":
        provider = "cpu"  # No GPU runs it, so none is missed.
    if provider == "auto":
        try:
            return _open_on(bundle, golden, "cuda", precision, resources, fallback_reason)
        except (GraphMissing, ProviderUnavailable) as unavailable:
            fallback_reason = str(unavailable)
            log.warning("running on the CPU: %s", fallback_reason)
            provider = "cpu"
    return _open_on(bundle, golden, provider, precision, resources, fallback_reason)


def _open_on(
    bundle: Bundle,
    golden: Golden,
    provider: Provider,
    precision: str,
    resources: Resources,
    fallback_reason: str,
) -> Model:
    chosen = _choose(bundle, provider, _PRECISIONS.get(precision, _USUAL_PRECISION[provider]))
    path = bundle.folder / chosen.file
    graph, measured = _open_checked(bundle, path, golden, provider, chosen.precision, resources)
    return Model(
        bundle=bundle,
        graph=graph,
        probe=pack([min(golden.sequences, key=len)]),
        graph_file=chosen.file,
        precision=chosen.precision,
        provider=provider,
        fallback_reason=fallback_reason,
        self_check=measured,
        self_check_sequences=len(golden.sequences),
        parity=bundle.parity(),
        resources=resources,
    )


def _open_checked(
    bundle: Bundle,
    path: Path,
    golden: Golden,
    provider: Provider,
    precision: Precision,
    resources: Resources,
) -> tuple[EncoderGraph, Difference]:
    """Load a graph, and measure its answers to the golden inputs."""
    try:
        graph = EncoderGraph.open(path, provider, *resources)
        measured = check_golden(graph, golden, normalized=bundle.manifest.normalized)
    except ProviderUnavailable:
        raise
    except Exception as error:
        why = " ".join(str(error).split())
        if provider == "cuda":
            # The file is whole, as its checksum says: what fails is the card, its memory or its driver.
            raise ProviderUnavailable(f"CUDA cannot run {path.name}: {why}") from error
        raise BundleRefused(f"ONNX Runtime cannot run {path}: {why}") from error
    if broken := violation(measured, precision):
        raise ToleranceExceeded(
            f"{path} on {provider} breaks the numeric contract on the bundle's golden inputs: {broken}"
        )
    return graph, measured


def _choose(bundle: Bundle, provider: Provider, precision: Precision) -> Graph:
    candidates = [graph for graph in bundle.manifest.graphs if graph.lowering == _LOWERINGS[provider]]
    for graph in candidates:
        if graph.precision == precision:
            return graph
    offered = ", ".join(
        name for name, value in _PRECISIONS.items() if value in {graph.precision for graph in candidates}
    )
    wanted = next(name for name, value in _PRECISIONS.items() if value == precision)
    raise GraphMissing(f"{bundle.folder} has no {wanted} graph for {provider}; it has: {offered or 'none'}")
