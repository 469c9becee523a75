"""The encoder again, written from the published formulas in numpy and float64. Tests compare exported graphs with it.

`Oracle` encodes one sequence at a time, and shares no code with the export. Sources: Linear and LayerNorm from
PyTorch's documentation; attention, head by head, from "Attention Is All You Need", section 3.2, and sinusoidal
positions from its section 3.5; the post-norm layer from BERT; rotary positions from RoFormer, in complex form.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_erf = np.vectorize(math.erf)

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
}
POOLINGS: dict[str, Callable[[Array], Array]] = {
    "mean": lambda x: x.mean(0),
    "max": lambda x: x.max(0),
    "cls": lambda x: x[0],
    "last": lambda x: x[-1],
}


class Oracle:
    """An encoder; weights are named as in `Encoder.state_dict()`, choices as the fields of EncoderConfig."""

    def __init__(self, weights: Mapping[str, Array], choices: Mapping[str, Any]) -> None:
        self.weights = weights
        self.choices = choices

    def hidden(self, sequence: Array) -> Array:
        """Return the hidden rows [n, width] of token ids [n] or features [n, d_in]."""
        self._attention: list[tuple[Array, Array]] = []
        x = self._embed(sequence)
        for i in range(self.choices["layers"]):
            x = self._block(x, self._attend, f"layers.{i}.attention")
            if self.choices["d_ff"]:
                x = self._block(x, self._feed_forward, f"layers.{i}.feed_forward")
        return self._norm(x, "norm") if self.choices["final_norm"] else x

    def attention(self, sequence: Array) -> list[tuple[Array, Array]]:
        """Return each layer's attention weights [heads, n, n] and contexts [heads, n, value_dim]."""
        self.hidden(sequence)
        return self._attention

    def _embed(self, sequence: Array) -> Array:
        if sequence.ndim == 2:
            x = sequence.astype(np.float64)
            if self.choices["feature_projection"]:
                x = self._linear(x, "embedding.tokens")
        else:
            x = self.weights["embedding.tokens.weight"][sequence]
        if self.choices["positions"] in ("learned", "rotary_grid"):
            x = x + self.weights["embedding.positions.table.weight"][: len(x)]
        if self.choices["positions"] == "sinusoidal":
            rotations = unit_rotations(*x.shape)
            x = x + np.stack([rotations.imag, rotations.real], axis=-1).reshape(x.shape)
        if self.choices["embedding_norm"]:
            x = self._norm(x, "embedding.norm")
        return (
            x if self.choices["embedding_width"] == self.choices["d_model"] else self._linear(x, "embedding.projection")
        )

    def _block(self, x: Array, transform: Callable[[Array, str], Array], name: str) -> Array:
        norm = self.choices["norm"]
        y = transform(self._norm(x, f"{name}_norm") if norm == "pre" else x, name)
        if self.choices["residual"]:
            y = x + y
        return self._norm(y, f"{name}_norm") if norm == "post" else y

    def _feed_forward(self, x: Array, name: str) -> Array:
        activation = ACTIVATIONS[self.choices["activation"]]
        return self._linear(activation(self._linear(x, f"{name}.up")), f"{name}.down")

    def _attend(self, x: Array, name: str) -> Array:
        q, k, v = (self._linear(x, f"{name}.{part}") for part in ("query", "key", "value"))
        heads = [self._head(q, k, v, head, name) for head in range(self.choices["heads"])]
        weights, contexts = [weights for weights, _ in heads], [context for _, context in heads]
        self._attention.append((np.stack(weights), np.stack(contexts)))
        context = np.concatenate(contexts, axis=1)
        return self._linear(context, f"{name}.output") if self.choices["output_projection"] else context

    def _head(self, q: Array, k: Array, v: Array, head: int, name: str) -> tuple[Array, Array]:
        head_dim, value_dim = self.choices["head_dim"], self.choices["value_dim"]
        q, k = (rows[:, head * head_dim : (head + 1) * head_dim] for rows in (q, k))
        v = v[:, head * value_dim : (head + 1) * value_dim]
        temperature = math.sqrt(head_dim)
        if self.choices["learned_temperature"]:
            temperature = self.weights[f"{name}.temperature.temperature"][head]
        if self.choices["positions"] == "rotary":
            q, k = rotate(q), rotate(k)
        if self.choices["positions"] == "rotary_grid":
            q, k = self._rotate_in_grid(q), self._rotate_in_grid(k)
        products = q @ k.T / temperature
        if self.choices["distance_bias"]:
            numbers, places = self.weights[f"{name}.distances.table"][head], np.arange(len(q))
            products = products + numbers[places - places[:, None] + len(numbers) // 2]
        scores = np.where(self._allowed_pairs(len(q)), products, -np.inf)
        weights = softmax(scores)
        return weights, weights @ v

    def _rotate_in_grid(self, rows: Array) -> Array:
        """Rotate each patch by its centre in a grid from −1 to 1: half of the pairs by y, half by x."""
        zeros, pairs = self.choices["prefix_rows"], rows.shape[1] // 4
        side = math.ceil(math.sqrt(max(1, self.choices["max_tokens"] - zeros)))
        rotated = rows.astype(np.complex128)[:, 0::2] + 1j * rows[:, 1::2]
        for row in range(zeros, len(rows)):
            for half, place in enumerate(divmod(row - zeros, side)):
                turns = ((place + 0.5) / side * 2 - 1) / 100 ** (np.arange(pairs) / pairs)
                rotated[row, half * pairs : (half + 1) * pairs] *= np.exp(2j * np.pi * turns)
        return np.stack([rotated.real, rotated.imag], axis=-1).reshape(rows.shape)

    def _allowed_pairs(self, n: int) -> Array:
        all_pairs = np.ones((n, n), bool)
        return {
            "none": all_pairs,
            "causal": np.tril(all_pairs),
            "self_excluding": ~np.eye(n, dtype=bool),
        }[self.choices["mask"]]

    def _linear(self, x: Array, name: str) -> Array:
        y: Array = x @ self.weights[f"{name}.weight"].T
        return y + self.weights[f"{name}.bias"] if f"{name}.bias" in self.weights else y

    def _norm(self, x: Array, name: str) -> Array:
        return layer_norm(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"], self.choices["norm_eps"])


def unit_rotations(n: int, width: int) -> Array:
    """Return exp(i · p / 10000^(2j/width)) for each position p and pair j, complex [n, width / 2]."""
    angles = np.arange(n)[:, None] / 10000 ** (2 * np.arange(width // 2) / width)
    rotations: Array = np.exp(1j * angles)
    return rotations


def rotate(rows: Array) -> Array:
    """Rotate rows [n, head_dim]: each adjacent pair of columns is a complex number, turned by its row's position."""
    rotated = (rows[:, 0::2] + 1j * rows[:, 1::2]) * unit_rotations(*rows.shape)
    return np.stack([rotated.real, rotated.imag], axis=-1).reshape(rows.shape)


def softmax(scores: Array) -> Array:
    """Return exp(s) / Σ exp(s) over the last axis."""
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    shares: Array = powers / powers.sum(-1, keepdims=True)
    return shares


def layer_norm(x: Array, gamma: Array, beta: Array, eps: float) -> Array:
    """Return (x − mean) / √(variance + eps) · gamma + beta over the last axis."""
    centred = x - x.mean(-1, keepdims=True)
    normalized: Array = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * gamma + beta
    return normalized


def unit(vectors: Array) -> Array:
    """Scale vectors [..., d] to unit length."""
    scaled: Array = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    return scaled
