"""Run the graph that computes the attention weights of one sequence, for the RPC Attend."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from headwaiter_server.runtime.graph import session_options


@dataclass(frozen=True)
class AttentionSelection:
    """A selection of layers, of heads in each layer, and of one query for context vectors.

    Attributes:
        layers: indices of the layers, in the order of the result.
        heads: indices of the heads of each layer, in the order of the result.
        query: position of the query to compute context vectors for; None for no context vectors.
    """

    layers: Sequence[int]
    heads: Sequence[int]
    query: int | None = None


@dataclass(frozen=True, eq=False)
class AttentionWeights:
    """The attention of the selected layers and heads over a sequence of n tokens.

    Attributes:
        weights: float32 [layers, heads, n, n], softmax(q kᵀ · scale); each row belongs to one query and sums to 1.
        context: float32 [layers, heads, value_dim], weights · v of the selected query; None without a query.
    """

    weights: NDArray[np.float32]
    context: NDArray[np.float32] | None


class AttentionWeightsGraph:
    """A loaded graph that takes one sequence. It always runs on the CPU, in float32, in the calling thread.

    The devices and their memory are left to Encode. In host memory the graph takes one mapping of the bundle's float32
    weights, which the operating system may share with other processes and may drop. During a run it also takes H·n²
    floats for each selected layer, and a copy of the selected heads.
    """

    def __init__(self, session: ort.InferenceSession) -> None:
        self._session = session
        (self._token_input,) = (node.name for node in session.get_inputs())

    @classmethod
    def open(cls, path: Path) -> "AttentionWeightsGraph":
        """Load a graph.

        Args:
            path: the ONNX file; its external weights are in the same folder.
        """
        options = session_options(threads=1)
        # Prepacked weights would make a run some 7 % faster, but would take the memory of the weights a second time.
        options.add_session_config_entry("session.disable_prepacking", "1")
        # Without an arena, ONNX Runtime frees the memory of a run when the run ends.
        options.enable_cpu_mem_arena = False
        return cls(ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]))

    def run(self, sequence: NDArray[np.generic], selection: AttentionSelection) -> AttentionWeights:
        """Compute the selected attention weights of one sequence.

        Selecting fewer layers saves memory but no time: ONNX Runtime runs the whole graph whichever outputs are
        requested, even with its option `only_execute_path_to_fetches`.

        Args:
            sequence: token ids [n] or features [n, d_in].
            selection: the layers, heads and query to return.
        """
        tokens = sequence.astype(np.int64 if sequence.ndim == 1 else np.float32, copy=False)
        kinds = ["weights"] if selection.query is None else ["weights", "context"]
        names = [f"{kind}_{layer}" for kind in kinds for layer in selection.layers]
        outputs = self._session.run(names, {self._token_input: tokens})
        layers, heads = len(selection.layers), list(selection.heads)
        # Copying one layer at a time keeps the peak memory low: np.stack would hold the selected heads twice.
        weights = np.empty((layers, len(heads), len(tokens), len(tokens)), np.float32)
        for position, layer_weights in enumerate(outputs[:layers]):
            weights[position] = layer_weights[heads]
        context = None
        if selection.query is not None:
            context = np.stack([layer_context[heads, selection.query] for layer_context in outputs[layers:]])
        return AttentionWeights(weights, context)
