"""Writes an encoder as ONNX: traced by PyTorch in one lowering, its weights in a file that graphs share."""

import hashlib
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import onnx_ir as ir
import torch
from torch import Tensor, nn
from torch.export import Dim

from headwaiter_export.attention_layout import Attending, Packed, Portable
from headwaiter_export.encoder import Encoder
from headwaiter_export.parity import draw_sequences
from headwaiter_server.runtime.packing import PackedBatch, pack

# The first opset with Gelu.
OPSET = 20
# Vectors of this size and less stay inside the graph.
_INLINE_BYTES = 1024
# Weights start on a cache line.
_ALIGNMENT_BYTES = 64

# The lowerings that graphs are written in.
Written = Attending | Packed | Portable

_TOKENS, _BATCH, _SEQUENCE = Dim("tokens"), Dim("batch"), Dim("sequence")
_DIMS = {
    "tokens": _TOKENS,
    "batch": _BATCH,
    "sequence": _SEQUENCE,
    "batch + 1": _BATCH + 1,
    "3 * batch + 2": 3 * _BATCH + 2,
}


def trace(encoder: Encoder, lowering: type[Written], example: PackedBatch) -> ir.Model:
    """Trace an encoder into an ONNX graph that declares only the inputs it uses.

    Args:
        encoder: the model, in the precision of the graph.
        lowering: the layout of the graph's inputs.
        example: any batch of two sequences of different lengths, none of them 1; the graph takes all others too.
    """
    graph = _Graph(encoder, lowering)
    axes = {encoder.config.token_input: lowering.TOKEN_AXES, **lowering.INPUT_AXES}
    feeds = example.feeds(axes)
    with _silence(), torch.inference_mode():
        program = torch.onnx.export(
            graph.eval(),
            # As a keyword: a dict at the end of positional arguments would be taken for keywords.
            kwargs={"inputs": {name: torch.from_numpy(feeds[name]) for name in axes}},
            dynamic_shapes={"inputs": {name: {i: _DIMS[axis] for i, axis in enumerate(axes[name])} for name in axes}},
            input_names=list(axes),
            output_names=graph.output_names,
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    for fuse in lowering.FUSIONS:
        fuse(program.model)
    return _tidy(program.model)


def write_graph(encoder: Encoder, lowering: type[Written], path: Path) -> None:
    """Write one graph, in the encoder's own precision, and beside it its weights, in a file of the suffix `.bin`."""
    example = pack(draw_sequences(encoder.config, (3, 2)))
    with WeightsFile(path.with_suffix(".bin")) as weights:
        weights.write_graph(trace(encoder, lowering, example), path)


class WeightsFile:
    """The weights of all graphs of one precision: equal tensors are stored once, whichever graph they come from."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("wb")
        self._offsets: dict[bytes, int] = {}

    def __enter__(self) -> "WeightsFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write_graph(self, model: ir.Model, path: Path) -> None:
        """Write a graph to `path`, beside the weights, and its large tensors here."""
        for initializer in model.graph.initializers.values():
            tensor = initializer.const_value
            assert tensor is not None
            if tensor.nbytes > _INLINE_BYTES:
                initializer.const_value = self._store(tensor)
        path.write_bytes(ir.to_proto(model).SerializeToString(deterministic=True))

    def _store(self, tensor: ir.TensorProtocol) -> ir.ExternalTensor:
        content = tensor.tobytes()
        digest = hashlib.sha256(content).digest()
        if digest not in self._offsets:
            self._file.write(bytes(-self._file.tell() % _ALIGNMENT_BYTES))
            self._offsets[digest] = self._file.tell()
            self._file.write(content)
        return ir.ExternalTensor(
            self.path.name,
            self._offsets[digest],
            len(content),
            tensor.dtype,
            shape=ir.Shape(tensor.shape.numpy()),
            name=tensor.name or "",
            base_dir=self.path.parent,
        )


class _Graph(nn.Module):
    """An encoder as a function of named inputs, which is what a graph is."""

    def __init__(self, encoder: Encoder, lowering: type[Written]) -> None:
        super().__init__()
        self.encoder = encoder
        self.lowering = lowering
        self.output_names = lowering.output_names(encoder.config)

    def forward(self, inputs: dict[str, Tensor]) -> list[Tensor]:
        lowering = self.lowering(inputs)
        return lowering.outputs(*self.encoder(lowering.to_rows(inputs[self.encoder.config.token_input]), lowering))


def _tidy(model: ir.Model) -> ir.Model:
    """Drop the inputs a lowering does not use, and the tracer's notes on this machine's source files."""
    model.producer_name, model.producer_version = "headwaiter", version("headwaiter")
    for value in list(model.graph.inputs):
        if not value.uses():
            model.graph.inputs.remove(value)
    # The tracer calls a value by its operator, and `gather` is both an operator and an input of ours.
    inputs = {value.name for value in model.graph.inputs}
    for node in model.graph:
        for value in node.outputs:
            if value.name in inputs:
                value.name = f"{value.name}_result"
    for thing in (model, model.graph, *model.graph, *model.graph.inputs, *model.graph.initializers.values()):
        thing.metadata_props.clear()
        thing.doc_string = None
    return model


@contextmanager
def _silence() -> Iterator[None]:
    """Keep to ourselves what the tracer says to its own developers."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
