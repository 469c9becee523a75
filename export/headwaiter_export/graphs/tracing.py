"""Write an encoder as ONNX graphs: PyTorch traces it in one layout, and graphs share a file of weights."""

import ctypes
import gc
import hashlib
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from onnxscript import opset20 as op
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_export.encoder.found_attention import NotPackableError, place
from headwaiter_export.encoder.own_module import ModuleEncoder
from headwaiter_export.encoder.reference import random_sequences, sequence_of_parts
from headwaiter_export.graphs.batch_axis import drop_batch_axis
from headwaiter_export.graphs.graph_layout import GraphLayout
from headwaiter_export.graphs.module_weights import cut_products, fold_tables
from headwaiter_export.graphs.packed_cuda import CudaLayout
from headwaiter_export.graphs.repeated_layers import mark_layers, repeat_layers
from headwaiter_server.runtime.packing import TARGET, PackedBatch, pack

# Lengths of the traced batch. The tracer would turn equal lengths, and a length of 1, into constants.
TRACED_LENGTHS = (3, 2)
# Cuts the queries of the traced batch into two blocks: the tracer would turn a number of 1 into a constant.
TRACED_BLOCK_CELLS = 12
# The same for sources and targets: two blocks of three queries, and four blocks of two.
TRACED_SOURCE_LENGTHS, TRACED_TARGET_LENGTHS = (6, 4), (8, 5)
TRACED_PARTS_BLOCK_CELLS = 40
# The first opset with Gelu.
_OPSET = 20
# Tensors up to this size stay inside the graph.
_INLINE_BYTES = 1024
# A weight starts at a cache line.
_ALIGNMENT_BYTES = 64
_BATCH = Dim("batch")
_OWN_DIMS = ("tokens", "sequence", "blocks", "block")
_DIMS = {
    **{name: Dim(name) for name in (*_OWN_DIMS, *(TARGET + name for name in _OWN_DIMS), "rows")},
    "batch": _BATCH,
    "batch + 1": _BATCH + 1,
}


def _flatten(x: ir.Value, start_dim: int = 0, end_dim: int = -1) -> Any:
    """Write the operator `flatten` with constant sizes: 0 copies a size, and the sizes after `end_dim` are constant."""
    assert x.shape is not None
    rank = len(x.shape)
    after = [int(size) for size in x.shape[end_dim % rank + 1 :]]  # type: ignore[arg-type]
    return op.Reshape(x, op.Constant(value_ints=[*([0] * (start_dim % rank)), -1, *after]))


# The ONNX functions of operators that PyTorch's exporter knows only after decomposing them, and one that needs fewer
# operators than its own.
_ONNX_FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.ops.aten.__and__.Tensor: op.And,
    torch.ops.aten.__or__.Tensor: op.Or,
    torch.ops.aten.detach_.default: op.Identity,
    torch.ops.aten.flatten.using_ints: _flatten,
    torch.ops.aten.sym_numel.default: op.Size,
    torch.ops.aten.to.device: lambda x, device, dtype: op.Cast(x, to=dtype),
    torch.ops.aten.to.dtype: lambda x, dtype: op.Cast(x, to=dtype),
}


def trace(encoder: Encoder, layout: type[GraphLayout]) -> ir.Model:
    """Trace an encoder into an ONNX graph of the encoder's precision that declares only the inputs it uses.

    Raises:
        NotPackableError: the encoder is a module that cannot run on packed rows.
    """
    axes = layout.input_axes(encoder.config)
    feeds = _traced_batch(encoder.config).feeds(axes)
    inputs = {"inputs": {name: torch.from_numpy(feeds[name]) for name in axes}}
    if isinstance(encoder, ModuleEncoder):
        model = _trace_module(encoder, layout, inputs)
        fold_tables(model)
        cut_products(model)
        if issubclass(layout, CudaLayout):
            drop_batch_axis(model)
    else:
        model = _trace_layers(encoder, layout, inputs)
    names = [name for name in layout.output_names(encoder.config) if name != "hidden" or encoder.gives_rows]
    for output, name in zip(model.graph.outputs, names, strict=True):
        output.name = name
    for fuse in layout.FUSIONS:
        fuse(model)
    return tidy(model)


def _trace_layers(encoder: Encoder, layout: type[GraphLayout], inputs: dict[str, dict[str, Tensor]]) -> ir.Model:
    """Trace one layer of each kind, and copy its operators for the others."""
    axes = layout.input_axes(encoder.config)
    with silence(), _without_decomposition(), torch.inference_mode():
        program = torch.onnx.export(
            _GraphModule(mark_layers(encoder), layout).eval(),
            # As the last positional argument, the dict would be mistaken for keyword arguments.
            kwargs=inputs,
            dynamic_shapes={"inputs": {name: {i: _DIMS[axis] for i, axis in enumerate(axes[name])} for name in axes}},
            input_names=list(axes),
            opset_version=_OPSET,
            dynamo=True,
            optimize=False,
            verbose=False,
            custom_translation_table=_ONNX_FUNCTIONS,
        )
        assert program is not None
        program.model.graph.outputs.pop()
        repeat_layers(program.model, encoder)
        program.optimize()
    return program.model


def _trace_module(encoder: ModuleEncoder, layout: type[GraphLayout], inputs: dict[str, dict[str, Tensor]]) -> ir.Model:
    """Trace a module of the caller as a whole."""
    axes = layout.input_axes(encoder.config)
    # Code that compares the number of rows with a limit limits a named size, but none of these.
    dims = {**_DIMS, **dict.fromkeys(layout.TOKEN_AXES, Dim.DYNAMIC)}
    dynamic = {"inputs": {name: {i: dims[axis] for i, axis in enumerate(axes[name])} for name in axes}}
    graph = _GraphModule(encoder, layout).eval()
    # On some errors, the tracer prints the whole program.
    with silence(), redirect_stderr(StringIO()), torch.inference_mode():
        try:
            exported = torch.export.export(graph, (), inputs, dynamic_shapes=dynamic, strict=False)
            program = torch.onnx.export(
                exported, input_names=list(axes), opset_version=_OPSET, optimize=False, verbose=False
            )
        except NotPackableError:
            raise
        except Exception as error:
            # Of an operator without a form in ONNX, the cause names the operator.
            reason = next(iter(str(error.__cause__ or error).splitlines()), "")
            raise NotPackableError(
                place(error), f"PyTorch cannot trace this ({type(error).__name__}: {reason})"
            ) from error
        assert program is not None
        program.model.graph.outputs.pop()
        program.optimize()
    return program.model


def _traced_batch(config: EncoderConfig) -> PackedBatch:
    if not config.takes_target:
        return pack(random_sequences(config, TRACED_LENGTHS), block_cells=TRACED_BLOCK_CELLS)
    sequences = [
        sequence_of_parts(config, source, target, np.random.default_rng(0))
        for source, target in zip(TRACED_SOURCE_LENGTHS, TRACED_TARGET_LENGTHS, strict=True)
    ]
    return pack(sequences, block_cells=TRACED_PARTS_BLOCK_CELLS)


def write_graph(encoder: Encoder, layout: type[GraphLayout], path: Path) -> None:
    """Write one graph of the encoder's precision, and its weights to a file beside it with the suffix `.bin`."""
    with WeightsFile(path.with_suffix(".bin")) as weights:
        weights.write_graph(trace(encoder, layout), path)


class WeightsFile:
    """A file of the weights of several graphs; equal tensors are stored once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("wb")
        self._offsets: dict[bytes, int] = {}

    def __enter__(self) -> "WeightsFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write_graph(self, model: ir.Model, path: Path) -> None:
        """Write a graph to `path`, in the folder of this file, and its large tensors to this file."""
        for initializer in (each for graph in model.graphs() for each in graph.initializers.values()):
            tensor = initializer.const_value
            assert tensor is not None
            if tensor.nbytes > _INLINE_BYTES:
                initializer.const_value = self._store(tensor)
            elif isinstance(tensor, ir.ExternalTensor):
                # Of a file of the caller, whose small tensors are in another file too.
                initializer.const_value = ir.tensor(tensor.numpy(), name=tensor.name)
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


class _GraphModule(nn.Module):
    """An encoder as a function from a graph's named inputs to its outputs."""

    def __init__(self, encoder: Encoder, layout: type[GraphLayout]) -> None:
        super().__init__()
        self.encoder = encoder
        self.layout = layout

    def forward(self, inputs: dict[str, Tensor]) -> list[Tensor]:
        layout = self.layout(inputs)
        tokens, *types = (layout.to_rows(inputs[name]) for name in self.encoder.config.row_inputs)
        target = inputs.get(TARGET + self.encoder.config.token_input)
        others = {} if target is None else {"target": layout.target.to_rows(target)}
        pooled, hidden, logits = self.encoder(tokens, layout, *types, **others)
        # The last output keeps all operators of the marked layers in the traced graph; `trace` removes this output.
        outputs = layout.outputs(pooled, hidden, logits)
        kept = outputs[0] if hidden is None else hidden
        if self.encoder.decoder is not None and not self.encoder.config.decodes_rows and logits is not None:
            assert hidden is not None
            kept = hidden.sum() + logits.sum()
        return [*outputs, kept]


def tidy(model: ir.Model) -> ir.Model:
    """Remove unused inputs, and the tracer's metadata, which contains paths of the exporting machine."""
    model.producer_name, model.producer_version = "headwaiter", version("headwaiter")
    for value in list(model.graph.inputs):
        # A server tells a padded graph by its mask.
        if not value.uses() and value.name != "attention_mask":
            model.graph.inputs.remove(value)
    # The tracer names values after operators, so the output of an operator `gather` has the name of an input.
    inputs = {value.name for value in model.graph.inputs}
    nodes = tuple(model.graph.all_nodes())
    for node in nodes:
        for value in node.outputs:
            if value.name in inputs:
                value.name = f"{value.name}_result"
    values = (*model.graph.inputs, *model.graph.initializers.values())
    parts: list[ir.Model | ir.Graph | ir.Node | ir.Value] = [model, model.graph, *nodes, *values]
    for part in parts:
        part.metadata_props.clear()
        part.doc_string = None
    return model


@contextmanager
def _without_decomposition() -> Iterator[None]:
    """Leave the operators of traced programs as they are.

    Each operator of an encoder has an ONNX function. Decomposing the operators first gives the same graph, and takes
    60 % of the time of a trace.
    """
    decompose = ExportedProgram.run_decompositions
    ExportedProgram.run_decompositions = lambda program, _: program  # type: ignore[method-assign]
    try:
        yield
    finally:
        ExportedProgram.run_decompositions = decompose  # type: ignore[method-assign]


@contextmanager
def silence() -> Iterator[None]:
    """Suppress the tracer's messages, which help only its developers."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


@contextmanager
def frozen_objects() -> Iterator[None]:
    """Exclude the objects that exist now, such as PyTorch's modules, from the searches for cycles of objects.

    Python searches while it traces a graph, and `free_memory` lets it search; without this function, the searches took
    half of the export of a small model. If the caller has excluded objects, nothing changes.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def free_memory() -> None:
    """Delete cycles of objects, such as those that PyTorch's tracer leaves around weights, and return freed memory.

    glibc keeps freed blocks of up to 32 MB, and the matrices of a large model are such blocks. An export of 335 million
    parameters took 0.7 GB more at its peak without this function.
    """
    gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # Only glibc has it.
        if trim is not None:
            trim(0)
