"""The graph behind Attend: what attention looked at in one sequence."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from headwaiter_server.runtime.graph import session_options


@dataclass(frozen=True)
class AttentionSelection:
    """What to show of a sequence's attention.

    Attributes:
        layers: which layers, in which order.
        heads: which of their heads.
        query: the position whose context vectors are wanted too, if any.
    """

    layers: Sequence[int]
    heads: Sequence[int]
    query: int | None = None


@dataclass(frozen=True, eq=False)
class AttentionWeights:
    """What the selected heads of the selected layers looked at in n tokens.

    Attributes:
        weights: float32 [layers, heads, n, n]; each row is a query's, and sums to one.
        context: float32 [layers, heads, value_dim], what they made of the values for the chosen query; None without.
    """

    weights: NDArray[np.float32]
    context: NDArray[np.float32] | None


class AttentionWeightsGraph:
    """A loaded graph that takes one sequence, always on the CPU, in float32 and on the caller's own thread.

    It is an instrument: the device and its memory belong to Encode. What it costs in the host's memory is one mapping
    of the bundle's float32 weights, which the operating system shares with other users of the file and may drop, and
    while it runs the weights of the selected layers, H·n² floats each, and a copy of the selected heads.
    """

    def __init__(self, session: ort.InferenceSession) -> None:
        self._session = session
        (self._token_input,) = (node.name for node in session.get_inputs())

    @classmethod
    def open(cls, path: Path) -> "AttentionWeightsGraph":
        """Load a graph; its external weights lie beside it."""
        options = session_options(threads=1)
        # Packed copies of the weights would save some 7 % of a run, and take as much memory as they do.
        options.add_session_config_entry("session.disable_prepacking", "1")
        # What a run took is given back after it.
        options.enable_cpu_mem_arena = False
        return cls(ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]))

    def run(self, sequence: NDArray[np.generic], selection: AttentionSelection) -> AttentionWeights:
        """Look at token ids [n] or features [n, d_in].

        Fewer layers take less memory but no less time: ONNX Runtime runs a graph to its end whatever is asked of it,
        its option `only_execute_path_to_fetches` notwithstanding.
        """
        tokens = sequence.astype(np.int64 if sequence.ndim == 1 else np.float32, copy=False)
        kinds = ["weights"] if selection.query is None else ["weights", "context"]
        names = [f"{kind}_{layer}" for kind in kinds for layer in selection.layers]
        values = self._session.run(names, {self._token_input: tokens})
        layers, heads = len(selection.layers), list(selection.heads)
        # Layer by layer, as a copy of all of them on the way would cost as much again.
        weights = np.empty((layers, len(heads), len(tokens), len(tokens)), np.float32)
        for place, layer in enumerate(values[:layers]):
            weights[place] = layer[heads]
        context = None
        if selection.query is not None:
            context = np.stack([layer[heads, selection.query] for layer in values[layers:]])
        return AttentionWeights(weights, context)
