"""Run the graph that computes the attention weights of one sequence, for the RPC Attend."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from headwaiter_server.runtime.bundle import Bundle, naming
from headwaiter_server.runtime.errors import BundleRefused
from headwaiter_server.runtime.graph import open_session, session_options
from headwaiter_server.runtime.packing import pack

# The outputs of each layer of the graph. Graphs of older bundles lack the vectors.
_VECTORS = ("queries", "keys", "values")
ATTENTION_OUTPUTS = ("weights", "context", *_VECTORS)


@dataclass(frozen=True)
class AttentionSelection:
    """Selects the attention weights, and what else to return.

    Attributes:
        layers: indices of the layers, in the order of the result.
        heads: indices of the heads of each layer, in the order of the result.
        query: position whose context vectors are returned; None for no context vectors.
        vectors: whether to return q, k and v of the head, from which the context vector of the query is computed.
    """

    layers: Sequence[int]
    heads: Sequence[int]
    query: int | None = None
    vectors: bool = False


@dataclass(frozen=True, eq=False)
class AttentionVectors:
    """What the weights and the context vector of one query in one head are computed from, for a sequence of n tokens.

    Attributes:
        query: float32 [head_dim], q of the query, with its position.
        keys: float32 [n, head_dim], k of all tokens, with their positions.
        values: float32 [n, value_dim], v of all tokens.
    """

    query: NDArray[np.float32]
    keys: NDArray[np.float32]
    values: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class AttentionWeights:
    """The attention weights of the selected layers and heads, for a sequence of n tokens.

    Attributes:
        weights: float32 [layers, heads, n, n], softmax(q kᵀ · scale); each row belongs to one query and sums to 1.
        context: float32 [layers, heads, value_dim], weights · v of the selected query; None without a query.
        vectors: None if they were not selected, or the graph has none.
    """

    weights: NDArray[np.float32]
    context: NDArray[np.float32] | None
    vectors: AttentionVectors | None = None


class AttentionWeightsGraph:
    """A loaded graph that takes one sequence. It always runs on the CPU, in float32, in the calling thread.

    It leaves all GPUs and their memory to Encode. The bundle's float32 weights are mapped into host memory from a
    private copy; the operating system can drop pages of the mapping, except in a folder that is in memory. A run also
    needs H·n² floats for each selected layer, and a copy of the selected heads.
    """

    def __init__(self, session: ort.InferenceSession) -> None:
        self._session = session
        self._inputs = [node.name for node in session.get_inputs()]
        # Those of older bundles return no vectors.
        self._has_vectors = any(output.name == "queries_0" for output in session.get_outputs())

    @classmethod
    def open_in(cls, bundle: Bundle) -> "AttentionWeightsGraph":
        """Load the graph of a bundle.

        Raises:
            BundleChanged: a file is not the one that was checked when the bundle was opened.
            BundleRefused: the graph has other layers or heads than the manifest.
        """
        manifest, listed = bundle.manifest, bundle.manifest.attend
        with bundle.private_copy(listed.file, listed.weights_file) as folder:
            graph = cls.open(folder / listed.file)
        with naming(bundle.folder / listed.file):
            graph.check(manifest.layers, manifest.heads)
        return graph

    @classmethod
    def open(cls, path: Path) -> "AttentionWeightsGraph":
        """Load an ONNX file, with its external weights from the same folder."""
        options = session_options(threads=1)
        # Prepacking would make a run about 7 % faster, but would copy the weights.
        options.add_session_config_entry("session.disable_prepacking", "1")
        # Without an arena, ONNX Runtime frees the memory of a run when the run ends.
        options.enable_cpu_mem_arena = False
        return cls(open_session(path, "cpu", options))

    def check(self, layers: int, heads: int) -> None:
        """Raise BundleRefused unless the graph has these numbers; the message does not name the graph's file."""
        outputs = self._session.get_outputs()
        kinds = len(ATTENTION_OUTPUTS) if self._has_vectors else len(ATTENTION_OUTPUTS) - len(_VECTORS)
        found = sorted({output.shape[0] for output in outputs})
        if len(outputs) != kinds * layers or found != [heads]:
            raise BundleRefused(
                f"has {len(outputs) / kinds:g} layers of {found} heads, and the manifest has layers {layers} and heads "
                f"{heads}"
            )

    def run(self, sequence: NDArray[np.generic], selection: AttentionSelection) -> AttentionWeights:
        """Compute the selected attention weights of one sequence.

        Selecting fewer layers saves memory but no time: ONNX Runtime runs the whole graph for any output, even with its
        option `only_execute_path_to_fetches`.

        Args:
            sequence: as in `pack`.
            selection: the layers, heads and query to return.
        """
        kinds = ["weights"] if selection.query is None else ["weights", "context"]
        has_vectors = selection.vectors and self._has_vectors
        kinds += _VECTORS if has_vectors else ()
        names = [f"{kind}_{layer}" for kind in kinds for layer in selection.layers]
        outputs = self._session.run(names, pack([sequence]).feeds(self._inputs))
        layers, heads = len(selection.layers), list(selection.heads)
        # Copying one layer at a time keeps the peak memory low: np.stack would hold the selected heads twice.
        weights = np.empty((layers, len(heads), len(sequence), len(sequence)), np.float32)
        for position, layer_weights in enumerate(outputs[:layers]):
            weights[position] = layer_weights[heads]
        context = vectors = None
        if selection.query is not None:
            context = np.stack([rows[heads, selection.query] for rows in outputs[layers : 2 * layers]])
        if has_vectors:  # Of one layer and one head.
            queries, keys, values = (each[heads[0]].copy() for each in outputs[2 * layers :])
            vectors = AttentionVectors(queries[selection.query], keys, values)
        return AttentionWeights(weights, context, vectors)
