"""An ONNX file of the caller: what it takes, what it gives, and its results for one sequence at a time."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto

from headwaiter_export.config.field_checks import ConfigError
from headwaiter_proto.encoder_pb2 import PRECISION_FP16, PRECISION_FP32, PRECISION_INT8, Precision
from headwaiter_server.runtime.errors import one_line
from headwaiter_server.runtime.graph import open_session, session_options

IDS, MASK, TYPES, POSITIONS = "input_ids", "attention_mask", "token_type_ids", "position_ids"
# The names that optimum, sentence-transformers and transformers give to outputs of a known meaning.
_ROWS = ("last_hidden_state", "token_embeddings", "hidden")
_VECTORS = ("sentence_embedding", "text_embeds", "image_embeds", "pooled")
_LOGITS = ("logits", "token_logits")
# What a file may give, as the flag that names its outputs says it.
KINDS = ("hidden", "pooled", "logits")
_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")
_FLOATS: dict[int, type[np.generic]] = {
    TensorProto.FLOAT: np.float32,
    TensorProto.FLOAT16: np.float16,
    TensorProto.DOUBLE: np.float64,
}
_NUMPY: dict[int, type[np.generic]] = {
    **_FLOATS,
    TensorProto.INT64: np.int64,
    TensorProto.INT32: np.int32,
    TensorProto.BOOL: np.bool_,
}
# Operators that compute in int8, as ONNX Runtime's quantisers write them.
_INT8 = ("DynamicQuantizeLinear", "QuantizeLinear", "MatMulInteger", "DynamicQuantizeMatMul", "QLinearMatMul")
# Operators of quantised weights whose products are in floating point, and the bits of a weight without an attribute.
_QUANTIZED_WEIGHTS, _USUAL_BITS = ("MatMulNBits", "MatMulBnb4", "GatherBlockQuantized"), 4
_BITS: dict[int, int] = {TensorProto.INT8: 8, TensorProto.UINT8: 8, TensorProto.INT4: 4, TensorProto.UINT4: 4}
# Operators with which poolings are appended have the same meaning from this opset on.
_LEAST_OPSET = 11
# Operators that ONNX Runtime's transformer optimiser writes, see `fused_operators`.
_FUSED = ("SkipLayerNormalization", "EmbedLayerNormalization", "Attention", "BiasGelu", "FastGelu")
# The numbers of dimensions of rows of features [B, N, width], and of images [B, channels, height, width].
_FEATURES, _IMAGES = 3, 4


@dataclass(frozen=True)
class Tensor:
    """An input or an output of a file.

    Attributes:
        kind: number of the type of its values, in ONNX.
        shape: its sizes; None for those that depend on the batch.
    """

    kind: int
    shape: tuple[int | None, ...]

    @property
    def dtype(self) -> type[np.generic]:
        """The type of its values, in numpy."""
        return _NUMPY[self.kind]


@dataclass(frozen=True, eq=False)
class OnnxFile:
    """An ONNX file, open on a CPU.

    Attributes:
        path: the file.
        model: its content, without weights in other files.
        session: runs it.
        inputs: what it takes.
        outputs: what it gives.
    """

    path: Path
    model: onnx.ModelProto
    session: onnxruntime.InferenceSession
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]

    @classmethod
    def open(cls, path: Path) -> "OnnxFile":
        """Open a file, and check that its inputs have a known meaning and sizes of any batch.

        Raises:
            ConfigError: the file cannot be read or run, or it needs what a server does not give it.
        """
        try:
            model = onnx.load(path, load_external_data=False)
        except Exception as error:  # noqa: BLE001 - a damaged file raises any error
            raise ConfigError(f"{path} is no ONNX file ({one_line(error)}): export it again") from None
        nodes = [node for graph in _graphs(model.graph) for node in graph.node]
        custom = {node.domain for node in nodes} - {*_DOMAINS, *(each.domain for each in model.functions)}
        if custom:
            operators = sorted({node.op_type for node in nodes if node.domain in custom})
            raise ConfigError(
                f"{path} has the custom operators {', '.join(operators)} of {', '.join(sorted(custom))}, which no "
                "server has: export the model with standard operators"
            )
        try:
            session = open_session(path, "cpu", session_options(1))
        except Exception as error:  # noqa: BLE001 - ONNX Runtime raises many types
            raise ConfigError(
                f"ONNX Runtime cannot open {path} ({one_line(error)}): put the files of its weights beside it, or "
                "export it again"
            ) from None
        initialized = {each.name for each in model.graph.initializer}
        inputs = {each.name: _tensor(each) for each in model.graph.input if each.name not in initialized}
        file = cls(path, model, session, inputs, {each.name: _tensor(each) for each in model.graph.output})
        if file.opset < _LEAST_OPSET:
            raise ConfigError(
                f"{path} is of opset {file.opset}: export it with opset {_LEAST_OPSET} or later, or convert it with "
                "onnx.version_converter"
            )
        file._check_inputs()
        return file

    @property
    def opset(self) -> int:
        """The version of the standard operators."""
        return max((each.version for each in self.model.opset_import if each.domain in ("", "ai.onnx")), default=0)

    @property
    def precision(self) -> Precision:
        """The number format in which most of the file computes; int8 also for quantised weights alone."""
        return PRECISION_INT8 if self.computes_in_int8 or self.weight_bits else self._float_precision

    @property
    def computes_in_int8(self) -> bool:
        """Whether the file multiplies in int8."""
        return any(node.op_type in _INT8 for node in self._nodes)

    @property
    def weight_bits(self) -> int:
        """The bits of quantised weights whose products are in floating point; 0 without such weights."""
        kinds = {each.name: each.data_type for each in self._matrices}
        for node in self._nodes:
            if node.op_type in _QUANTIZED_WEIGHTS:
                return int(_attributes(node).get("bits", _USUAL_BITS))
            if node.op_type == "DequantizeLinear" and (bits := _BITS.get(kinds.get(node.input[0], 0))):
                return 0 if self.computes_in_int8 else bits
        return 0

    @property
    def number_format(self) -> str:
        """What the log calls the format of the file's numbers."""
        products = "fp16" if self._float_precision == PRECISION_FP16 else "fp32"
        if self.computes_in_int8:
            return "int8"
        return f"{products}, with weights of {self.weight_bits} bits" if self.weight_bits else products

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of its matrices."""
        blocks = [(node, _attributes(node)) for node in self._nodes if node.op_type.startswith("MatMul")]
        quantized = {node.input[1]: (sizes["K"], sizes["N"]) for node, sizes in blocks if "K" in sizes}
        kept = (tuple(each.dims) for each in self._matrices if each.name not in quantized)
        return [*kept, *quantized.values()]

    @property
    def _float_precision(self) -> Precision:
        floats = [each.data_type for each in self._matrices if each.data_type in _FLOATS]
        return PRECISION_FP16 if 2 * floats.count(TensorProto.FLOAT16) > len(floats) else PRECISION_FP32

    @property
    def _nodes(self) -> Iterator[onnx.NodeProto]:
        return (node for graph in _graphs(self.model.graph) for node in graph.node)

    @property
    def _matrices(self) -> list[TensorProto]:
        initializers = (each for graph in _graphs(self.model.graph) for each in graph.initializer)
        constants = (node.attribute[0].t for node in self._nodes if node.op_type == "Constant" and node.attribute)
        return [each for each in (*initializers, *constants) if len(each.dims) > 1]

    @property
    def fused_operators(self) -> list[str]:
        """Its operators that an optimiser fused, and that are slow on CPUs."""
        fused = (node.op_type for node in self._nodes if node.domain == "com.microsoft")
        return sorted({name for name in fused if name in _FUSED})

    @property
    def features(self) -> str | None:
        """The name of the input of features or pixels; None for a file of token ids."""
        return next((name for name in self.inputs if name not in (IDS, MASK, TYPES, POSITIONS)), None)

    @property
    def takes_images(self) -> bool:
        """Whether the features are the pixels of images."""
        return self.features is not None and len(self.inputs[self.features].shape) == _IMAGES

    def vocabulary_size(self) -> int:
        """Return the number of rows of the table that token ids choose from; 0 if there is no such table."""
        tables = {each.name: each.dims[0] for each in self.model.graph.initializer if len(each.dims) == 2}
        ids = {IDS}
        for node in self.model.graph.node:
            if node.op_type in ("Cast", "Reshape", "Identity", "Flatten", "Unsqueeze") and node.input[0] in ids:
                ids.add(node.output[0])
            if node.op_type in ("Identity", "Cast", "DequantizeLinear") and node.input[0] in tables:
                tables[node.output[0]] = tables[node.input[0]]
            if node.op_type == "Gather" and node.input[1] in ids and node.input[0] in tables:
                return int(tables[node.input[0]])
            if node.op_type == "EmbedLayerNormalization" and node.input[0] in ids and node.input[2] in tables:
                return int(tables[node.input[2]])
        return 0

    def known_outputs(self, named: Mapping[str, str]) -> dict[str, str]:
        """Return the names of the outputs of a known meaning, by their kind.

        Args:
            named: the names that the caller gives, by kind.

        Raises:
            ConfigError: there is no such output, or the meaning of all outputs is unknown.
        """
        for kind, name in named.items():
            if kind not in KINDS or name not in self.outputs:
                raise ConfigError(
                    f"{self.path} has no output {name} for {kind}: name {', '.join(KINDS)} among its outputs "
                    f"{', '.join(self.outputs)}"
                )
        if named:
            return dict(named)
        known = {}
        for kind, names in zip(KINDS, (_ROWS, _VECTORS, _LOGITS), strict=True):
            if found := [name for name in names if name in self.outputs]:
                known[kind] = found[0]
        if not known:
            raise ConfigError(
                f"{self.path} gives {', '.join(self.outputs)}, whose meaning is unknown: name it with "
                f"--outputs KIND=NAME, where KIND is one of {', '.join(KINDS)}"
            )
        return known

    def run(
        self,
        outputs: list[str],
        rows: NDArray[np.generic],
        token_types: NDArray[np.generic] | None = None,
    ) -> list[NDArray[Any]]:
        """Return outputs for one sequence: token ids [n] or features [n, width], or pixels of one image.

        Raises:
            ConfigError: the file does not run on it.
        """
        tokens = len(rows)
        ones, feeds = np.ones((1, tokens)), dict[str, NDArray[Any]]()
        for name, each in self.inputs.items():
            if name == MASK:
                array: NDArray[Any] = ones
            elif name == POSITIONS:
                array = np.arange(tokens)[None]
            elif name == TYPES:
                array = 0 * ones if token_types is None else token_types[None]
            else:
                array = rows[None]
            feeds[name] = array.astype(each.dtype)
        try:
            return list(self.session.run(outputs, feeds))
        except Exception as error:  # noqa: BLE001 - ONNX Runtime raises many types
            raise ConfigError(
                f"{self.path} fails on one sequence of {tokens:,} tokens ({one_line(error)}): give a smaller "
                "--max-tokens, or export it with sizes that may change"
            ) from None

    def _check_inputs(self) -> None:
        unknown = [name for name in self.inputs if name not in (IDS, MASK, TYPES, POSITIONS)]
        others = [
            name
            for name in unknown
            if IDS in self.inputs
            or len(unknown) > 1
            or self.inputs[name].kind not in _FLOATS
            or len(self.inputs[name].shape) not in (_FEATURES, _IMAGES)
        ]
        if others or not self.inputs.keys() - {MASK, TYPES, POSITIONS}:
            raise ConfigError(
                f"{self.path} takes {', '.join(others or self.inputs)}, which a server cannot fill in: export an "
                f"encoder of {IDS}, or of one array of features or pixels, with any of {MASK}, {TYPES} and {POSITIONS}"
            )
        for name, each in self.inputs.items():
            if each.kind not in _NUMPY:
                raise ConfigError(
                    f"{self.path} takes {name} as {TensorProto.DataType.Name(each.kind)}: export it with "
                    "numbers of another type"
                )
            free = 1 if len(each.shape) == _IMAGES else 2
            if any(size is not None for size in each.shape[:free]):
                shape = ", ".join(str(size or "?") for size in each.shape)
                raise ConfigError(
                    f"{self.path} takes {name} of the shape [{shape}] alone: export it with sizes that may change, "
                    "called dynamic axes or dynamic shapes"
                )


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph, and those inside its operators."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
                yield from _graphs(inner)


def _attributes(node: onnx.NodeProto) -> dict[str, int]:
    """Return the attributes of an operator that are whole numbers."""
    return {each.name: each.i for each in node.attribute if each.type == onnx.AttributeProto.INT}


def _tensor(value: onnx.ValueInfoProto) -> Tensor:
    tensor = value.type.tensor_type
    sizes = (each.dim_value if each.HasField("dim_value") else None for each in tensor.shape.dim)
    return Tensor(tensor.elem_type, tuple(sizes))
