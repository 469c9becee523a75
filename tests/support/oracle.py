"""The encoder again, written from the published formulas in numpy and float64. Tests compare exported graphs with it.

`Oracle` encodes one sequence at a time, and shares no code with the export. Sources: Linear and LayerNorm from
PyTorch's documentation; attention, head by head, from "Attention Is All You Need", section 3.2, and sinusoidal
positions from its section 3.5; the post-norm layer from BERT; rotary positions from RoFormer, in complex form; RMSNorm
and the gated feed-forward block from https://arxiv.org/abs/1910.07467 and https://arxiv.org/abs/2002.05202.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_erf = np.vectorize(math.erf)


def sigmoid(x: Array) -> Array:
    """Return 1 / (1 + exp(-x)), without an overflow of exp."""
    rows: Array = (1 + np.tanh(x / 2)) / 2
    return rows


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "quick_gelu": lambda x: x * sigmoid(1.702 * x),
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x * sigmoid(x),
}
DENSE_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "identity": lambda x: x,
    "tanh": np.tanh,
    "sigmoid": sigmoid,
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    **{name: ACTIVATIONS[name] for name in ("relu", "gelu", "silu")},
}
HEAD_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {**ACTIVATIONS, "tanh": np.tanh}
_DISTANCES = ("distance_bias", "distance_keys", "distance_queries")
POOLINGS: dict[str, Callable[[Array], Array]] = {
    "mean": lambda x: x.mean(0),
    "max": lambda x: x.max(0),
    "cls": lambda x: x[0],
    "last": lambda x: x[-1],
    "weighted_mean": lambda x: np.average(x, axis=0, weights=range(1, len(x) + 1)),
    "mean_sqrt_len": lambda x: x.sum(0) / math.sqrt(len(x)),
}


class Oracle:
    """An encoder; weights are named as in `Encoder.state_dict()`, choices as the fields of EncoderConfig."""

    # Number of tokens of the sequence that are attended to.
    _attended: float = math.inf

    def __init__(self, weights: Mapping[str, Array], choices: Mapping[str, Any]) -> None:
        self.weights = weights
        self.choices = choices

    def hidden(self, sequence: Array) -> Array:
        """Return the hidden rows [n, width] of token ids [n], ids and token types [n, 2], or features [n, d_in].

        `reply_rows` turns them into those of a reply. With a target, the last column of a sequence is 1 in its rows;
        the hidden rows are the encoder's of the source and the decoder's of the target.

        `smallest_gap` is then the smallest gap between the scores of an expert that a row chooses and of one that it
        does not choose, divided by the largest score of the layer; infinite without a choice of experts.
        """
        self._attention: list[tuple[Array, Array]] = []
        decoder = self.choices["decoder"]
        if decoder and decoder["input"] == "target":
            is_target = sequence[:, -1] == 1
            rows = sequence[:, 0] if self.choices["vocabulary_size"] else sequence[:, :-1]
            x = self._encode(rows[~is_target])
            return np.concatenate([x, self._decode(rows[is_target], x)])
        self._attended = self._attended_tokens(sequence)
        self.smallest_gap = math.inf
        x = self._encode(sequence)
        moved = np.array([decoder["start_id"], *sequence.reshape(len(sequence), -1)[:-1, 0]]) if decoder else sequence
        return self._decode(moved, x) if decoder and decoder["input"] == "text" else x

    def _encode(self, sequence: Array) -> Array:
        """Return the rows after the last layer of the encoder."""
        x = embeddings = self._embed(sequence)
        for i in range(self.choices["layers"]):
            x = self._block(x, self._attend, f"layers.{i}.attention", has_norm=i > 0 or self.choices["first_norm"])
            if self.choices["d_ff"]:
                x = self._block(x, self._feed_forward, f"layers.{i}.feed_forward")
            if i == 0 and self.choices["convolution_kernel"]:
                x = self._convolve(embeddings, x)
        return self._norm(x, "norm") if self.choices["final_norm"] and self.choices["layers"] else x

    def _convolve(self, embeddings: Array, x: Array) -> Array:
        """Return rows [n, d] with a convolution of the embeddings added, as DeBERTa v2 does after its first layer."""
        size, (n, width) = self.choices["convolution_kernel"], embeddings.shape
        kernel = self.weights["layers.0.convolution.linear.weight"].reshape(width, size, width)
        padded = np.pad(embeddings, ((size // 2, size // 2), (0, 0)))
        sums = [np.einsum("sd,osd->o", padded[i : i + size], kernel) for i in range(n)]
        convolved = ACTIVATIONS[self.choices["activation"]](
            np.stack(sums) + self.weights["layers.0.convolution.linear.bias"]
        )
        return self._norm(x + convolved, "layers.0.convolution.norm")

    def reply_rows(self, hidden: Array) -> Array:
        """Return hidden rows after all their modules, [n, hidden_width]."""
        return self._modules("row_modules", hidden)

    def _decode(self, sequence: Array, source: Array) -> Array:
        """Return the decoder's rows of its own token ids or features, given the encoder's rows.

        Source: "Attention Is All You Need", section 3.1.
        """
        prefix, decoder = "decoder.", self.choices["decoder"]
        weights = {name.removeprefix(prefix): each for name, each in self.weights.items() if name.startswith(prefix)}
        weights |= {name: each for name, each in self.weights.items() if name.startswith("embedding.tokens.")}
        choices = {**self.choices, **decoder, "local_layers": (), "token_types": 0}
        stack = Oracle(weights, choices)
        anywhere = {"mask": "none", "positions": "none", "score_cap": 0}
        across = Oracle(weights, {**choices, **anywhere, **dict.fromkeys(_DISTANCES, False)})
        stack._attention = across._attention = self._attention if decoder["input"] != "start" else []
        x = stack._embed(sequence)
        for i in range(decoder["layers"]):
            name = f"layers.{i}"
            to_source = partial(across._attend, source=source)
            own = stack._attend if decoder["self_attention"] else to_source
            x = stack._block(x, own, f"{name}.attention", has_norm=i > 0 or self.choices["first_norm"])
            if decoder["self_attention"]:
                x = stack._block(x, to_source, f"{name}.cross_attention")
            if decoder["d_ff"]:
                x = stack._block(x, stack._feed_forward, f"{name}.feed_forward")
        return stack._norm(x, "norm") if self.choices["final_norm"] else x

    def pooled(self, rows: Array) -> Array:
        """Return the pooled vector of hidden rows [n, width], after all modules but the last scaling to unit length."""
        if head := self.choices["vocabulary_head"]:
            rows = HEAD_ACTIVATIONS[head["activation"]](self._linear(rows, "vocabulary_head.dense"))
            # SPLADE v2, equations 1 and 6: the largest log(1 + relu(logit)) of each token of the vocabulary.
            logits = self._linear(self._norm(rows, "vocabulary_head.norm"), "vocabulary_head.output")
            weights = np.log1p(np.maximum(logits, 0))
            largest: Array = (np.log1p(weights) if head["log_twice"] else weights).max(0)
            return largest
        if self.choices["pooling"] == "attention":
            return self._modules("after_pooling", self._attention_pooled(rows))
        poolings = self.choices["concatenated"] or [self.choices["pooling"]]
        return self._modules("after_pooling", self._pool(rows, poolings))

    def _pool(self, rows: Array, poolings: Iterable[str]) -> Array:
        """Return the vectors of some poolings of rows [n, width], one after another."""
        count = self.choices["prefix_rows"]
        parts = {"prefix_mean": rows[:count], "patch_mean": rows[count:]}
        vectors = [parts[each].mean(0) if each in parts else POOLINGS[each](rows) for each in poolings]
        return np.concatenate(vectors)

    def _attention_pooled(self, rows: Array) -> Array:
        """Return the vector of a query that attends to all rows [n, width], "Scaling Vision Transformers", MAP head."""
        name, heads = "attention_pooling", self.choices["heads"]
        scores, values = self._linear(rows, f"{name}.scores"), self._linear(rows, f"{name}.value")
        parts = np.split(values, heads, axis=1)
        context = np.concatenate([softmax(scores[:, head]) @ parts[head] for head in range(heads)])
        pooled = self._linear(context, f"{name}.output")
        if not self.choices["d_ff"]:
            return pooled
        return pooled + self._feed_forward(self._norm(pooled, f"{name}.norm"), f"{name}.feed_forward")

    def _modules(self, field: str, vector: Array) -> Array:
        """Return a vector, or each of several vectors, after the modules of a field."""
        for i, module in enumerate(self.choices[field]):
            name = f"{field}.{i}"
            if module["kind"] == "dense":
                vector = DENSE_ACTIVATIONS[module["activation"]](self._linear(vector, f"{name}.linear"))
            elif module["kind"] == "layer_norm":
                gamma, beta = (self.weights[f"{name}.norm.{tensor}"] for tensor in ("weight", "bias"))
                vector = layer_norm(vector, gamma, beta, module["eps"])
            elif module["kind"] == "truncate":
                vector = vector[..., : module["width"]]
            else:
                vector = unit(vector)
        return vector

    def logits(self, hidden: Array) -> Array | None:
        """Return the logits [1, labels] of hidden rows [n, width], or [n, labels] of each row; None without a head."""
        head = self.choices["head"]
        if head is None:
            return None
        decoder = self.choices["decoder"]
        if decoder and decoder["input"] == "start":
            rows = self._decode(np.array([decoder["start_id"]]), hidden)
        else:
            rows = hidden if head["per_token"] else self._pool(hidden, head["poolings"])[None]
        if head["activation"]:
            rows = HEAD_ACTIVATIONS[head["activation"]](self._linear(rows, "head.dense"))
        rows = self._norm(rows, "head.norm") if head["norm"] else rows
        return self._linear(rows, "head.output")

    def attention(self, sequence: Array) -> list[tuple[Array, Array]]:
        """Return each layer's attention weights [heads, n, n] and contexts [heads, n, value_dim]."""
        self.hidden(sequence)
        return self._attention

    def _learned_positions(self, sequence: Array) -> list[int]:
        """Return the place of each token's vector; tokens with pad_id have none of their own, and share the first."""
        if self.choices["pad_id"] is None:
            return list(range(len(sequence)))
        places, count = [], 0
        for token in sequence.reshape(len(sequence), -1)[:, 0]:
            count += int(token != self.choices["pad_id"])
            places.append(count if token != self.choices["pad_id"] else 0)
        return places

    def _embed(self, sequence: Array) -> Array:
        if self.choices["feature_width"]:
            x = sequence.astype(np.float64)
            if self.choices["feature_projection"]:
                x = self._linear(x, "embedding.tokens")
        elif self.choices["token_types"]:
            ids, types = sequence.T
            x = self.weights["embedding.tokens.weight"][ids] + self.weights["embedding.types.weight"][types]
        else:
            x = self.weights["embedding.tokens.weight"][sequence]
        if self.choices["mask_id"] is not None:
            unmasked = sequence.reshape(len(sequence), -1)[:, :1] != self.choices["mask_id"]
            x = x * unmasked * (len(x) / max(1, unmasked.sum()))
        if self.choices["positions"] in ("learned", "rotary_grid"):
            x = x + self.weights["embedding.positions.table.weight"][self._learned_positions(sequence)]
        if self.choices["positions"] == "sinusoidal":
            rotations = unit_rotations(*x.shape)
            x = x + np.stack([rotations.imag, rotations.real], axis=-1).reshape(x.shape)
        if self.choices["embedding_norm"]:
            x = self._norm(x, "embedding.norm")
        return (
            x if self.choices["embedding_width"] == self.choices["d_model"] else self._linear(x, "embedding.projection")
        )

    def _block(self, x: Array, transform: Callable[[Array, str], Array], name: str, *, has_norm: bool = True) -> Array:
        norm = self.choices["norm"]
        y = transform(self._norm(x, f"{name}_norm") if norm in ("pre", "sandwich") and has_norm else x, name)
        if norm == "sandwich":
            y = self._norm(y, f"{name}_end_norm")
        if self.choices["residual"]:
            y = x + y
        return self._norm(y, f"{name}_norm") if norm == "post" and has_norm else y

    def _feed_forward(self, x: Array, name: str) -> Array:
        activation, y = ACTIVATIONS[self.choices["activation"]], self._linear(x, f"{name}.up")
        inner = activation(self._linear(x, f"{name}.gate")) * y if self.choices["gated"] else activation(y)
        return self._linear(inner, f"{name}.down")

    def _attend(self, x: Array, name: str, source: Array | None = None) -> Array:
        """Attend from rows x to the rows of the source, which are also x in the encoder."""
        source = x if source is None else source
        q, k = self._linear(x, f"{name}.query"), self._linear(source, f"{name}.key")
        experts = self.choices["experts"]
        v = self._expert_values(x, f"{name}.value") if experts else self._linear(source, f"{name}.value")
        heads = [self._head(q, k, v, head, name) for head in range(self.choices["heads"])]
        weights, contexts = [weights for weights, _ in heads], [context for _, context in heads]
        self._attention.append((np.stack(weights), np.stack(contexts)))
        if self.choices["experts"]:
            return self._expert_output(contexts, x, f"{name}.output")
        context = np.concatenate(contexts, axis=1)
        return self._linear(context, f"{name}.output") if self.choices["output_projection"] else context

    def _head(self, q: Array, k: Array, v: Array, head: int, name: str) -> tuple[Array, Array]:
        head_dim, value_dim = self.choices["head_dim"], self.choices["value_dim"]
        q, k = (rows[:, head * head_dim : (head + 1) * head_dim] for rows in (q, k))
        v = v[:, head * value_dim : (head + 1) * value_dim]
        if self.choices["query_key_norm"]:
            q, k = self._norm(q, f"{name}.query_norm"), self._norm(k, f"{name}.key_norm")
        temperature = math.sqrt(head_dim)
        if self.choices["learned_temperature"]:
            temperature = self.weights[f"{name}.temperature.temperature"][head]
        if self.choices["positions"] == "rotary":
            prefix = "local_" if self._is_local(name) else ""
            theta, scaling = self.choices[f"{prefix}rotary_theta"], self.choices[f"{prefix}rotary_scaling"]
            precision = np.float32 if self.choices["rotary_float32"] else np.float64
            rounded = self.choices["rotary_float16"]
            rotations = unit_rotations(len(q), head_dim, theta, precision, scaling, rounded=rounded)
            q, k = (rotate(rows, rotations) for rows in (q, k))
        if self.choices["positions"] == "rotary_grid":
            q, k = self._rotate_in_grid(q), self._rotate_in_grid(k)
        products = q @ k.T / temperature
        if cap := self.choices["score_cap"]:
            products = cap * np.tanh(products / cap)
        if self.choices["distance_bias"]:
            numbers, places = self.weights[f"{name}.distances.table"][head], self._places(len(q))
            products = products + numbers[places - places[:, None] + len(numbers) // 2]
        if self.choices["positions"] == "alibi":
            places = np.arange(len(q))
            products = products - alibi_slope(head, self.choices["heads"]) * np.abs(places - places[:, None])
        if self.choices["distance_keys"]:
            products = products + self._products_by_distance(q, f"{name}.distance_keys", head) / temperature
        if self.choices["distance_queries"]:
            products = products + self._products_by_distance(k, f"{name}.distance_queries", head).T / math.sqrt(
                head_dim
            )
        scores = np.where(self._allowed_pairs(len(q), len(k), name), products, -np.inf)
        weights = softmax(scores)
        return weights, weights @ v

    def _places(self, n: int) -> Array:
        """Return the place of each row: its number, or a place in a grid of patches after a class row."""
        side = self.choices["distance_grid"]
        if not side:
            return np.arange(n)
        row, column = np.divmod(np.arange(side * side), side)
        patches = row * (2 * side - 1) + column
        return np.concatenate(([-(patches.max() + 1)], patches))

    def _products_by_distance(self, rows: Array, name: str, head: int) -> Array:
        """Return the product of each row [n, head_dim] with the vector of its distance to each row, [n, n]."""
        vectors, places = self.weights[f"{name}.table"][head], np.arange(len(rows))
        return np.stack([vectors[places - i + len(vectors) // 2] @ row for i, row in enumerate(rows)])

    def _expert_values(self, x: Array, name: str) -> Array:
        """Return Σ_e gate_he W_he x of each row and head (SwitchHead, https://arxiv.org/abs/2312.07987)."""
        gates, heads, experts = self._gates(x, name), self.choices["heads"], self.choices["experts"]
        weights = self.weights[f"{name}.experts.weight"].reshape(heads, experts, -1, x.shape[1])
        pairs = [[gates[:, h, e, None] * (x @ weights[h, e].T) for e in range(experts)] for h in range(heads)]
        return np.concatenate([np.sum(each, axis=0) for each in pairs], axis=1)

    def _expert_output(self, contexts: list[Array], x: Array, name: str) -> Array:
        """Return Σ_h Σ_e gate_he W_he context_h of each row."""
        gates, heads, experts = self._gates(x, name), self.choices["heads"], self.choices["experts"]
        weights = self.weights[f"{name}.experts.weight"].reshape(x.shape[1], heads, experts, -1)
        pairs = [
            gates[:, h, e, None] * (contexts[h] @ weights[:, h, e].T) for h in range(heads) for e in range(experts)
        ]
        total: Array = np.sum(pairs, axis=0)
        return total

    def _gates(self, x: Array, name: str) -> Array:
        """Return the sigmoids of the highest scores of each row and head, and 0 for other experts [n, heads, experts].

        Of experts with equal scores, the one with the lower number is chosen first.
        """
        scores = self._linear(x, f"{name}.router").reshape(len(x), self.choices["heads"], -1)
        order, active = np.argsort(-scores, axis=-1, kind="stable"), self.choices["active_experts"]
        ranked = np.take_along_axis(scores, order, -1)
        if active < scores.shape[-1]:
            # A row of zeros, that of a masked token, has equal scores, which no rounding changes.
            gaps = (ranked[..., active - 1] - ranked[..., active])[scores.any(-1)]
            gap = gaps.min(initial=np.inf) / (np.abs(scores).max() or 1.0)
            self.smallest_gap = min(self.smallest_gap, gap)
        gates: Array = np.where(np.argsort(order, axis=-1) < active, sigmoid(scores), 0)
        return gates

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

    def _allowed_pairs(self, n: int, keys: int, name: str) -> Array:
        all_pairs = np.ones((n, keys), bool)
        allowed = {
            "none": all_pairs,
            "causal": np.tril(all_pairs),
            "self_excluding": ~np.eye(n, keys, dtype=bool),
        }[self.choices["mask"]]
        if self._is_local(name):
            # A band around the diagonal.
            allowed = allowed & np.tril(all_pairs, self.choices["window"]) & np.triu(all_pairs, -self.choices["window"])
        # ColBERT, section 3.2: the masks that fill up a query are not attended to.
        return allowed & (np.arange(keys) < self._attended)

    def _attended_tokens(self, sequence: Array) -> int:
        """Return the number of tokens before the run of `expansion_id` at the end, which a window makes shorter."""
        n, longest = len(sequence), self.choices["window"] if self.choices["local_layers"] else len(sequence) - 1
        if self.choices["expansion_id"] is None:
            return n
        ids = sequence.reshape(n, -1)[:, 0]
        run = 0
        while run < min(longest, n - 1) and ids[n - 1 - run] == self.choices["expansion_id"]:
            run += 1
        return n - run

    def _is_local(self, name: str) -> bool:
        return int(name.split(".")[1]) in self.choices["local_layers"]

    def _linear(self, x: Array, name: str) -> Array:
        y: Array = x @ self.weights[f"{name}.weight"].T
        return y + self.weights[f"{name}.bias"] if f"{name}.bias" in self.weights else y

    def _norm(self, x: Array, name: str) -> Array:
        weight, eps = self.weights[f"{name}.weight"], self.choices["norm_eps"]
        if self.choices["rms_norm"]:
            return rms_norm(x, weight, eps)
        return layer_norm(x, weight, self.weights[f"{name}.bias"], eps)


def unit_rotations(
    n: int,
    width: int,
    theta: float = 10_000,
    precision: type[np.floating[Any]] = np.float64,
    scaling: Mapping[str, Any] | None = None,
    *,
    rounded: bool = False,
) -> Array:
    """Return exp(i · p / theta^(2j/width)) for each position p and pair j, complex [n, width / 2].

    The angles are computed in the given precision. Scaling changes them, and YaRN also the length of the numbers. If
    `rounded`, the angles of position 1 are rounded to float16.
    """
    frequencies = 1 / precision(theta) ** (np.arange(0, width, 2).astype(precision) / precision(width))
    if scaling:
        frequencies = np.array([scaled(f, j, width, theta, scaling) for j, f in enumerate(frequencies)], precision)
    if rounded:
        frequencies = frequencies.astype(np.float16).astype(precision)
    angles = np.arange(n).astype(precision)[:, None] * frequencies
    rotations: Array = np.exp(1j * angles.astype(np.float64))
    if scaling and scaling["kind"] == "yarn":
        rotations = rotations * (scaling["attention_factor"] or 1 + 0.1 * math.log(max(1, scaling["factor"])))
    return rotations


def scaled(frequency: Any, pair: int, width: int, theta: float, scaling: Mapping[str, Any]) -> Any:
    """Return the scaled frequency of a pair.

    Sources: https://arxiv.org/abs/2306.15595 for linear, Llama 3.1's `apply_scaling` for llama3,
    https://arxiv.org/abs/2309.00071, equations 17 and 18, for yarn, with the ramp over pairs of its reference code.
    """
    factor, slow, fast = scaling["factor"], scaling["slow_turns"], scaling["fast_turns"]
    if scaling["kind"] == "linear":
        return frequency / factor
    if scaling["kind"] == "llama3":
        turns = scaling["trained_tokens"] * frequency / (2 * math.pi)
        kept = (turns - slow) / (fast - slow)
    else:
        # The pair that turns so many times in `trained_tokens` positions is where its frequency says.
        ends = [
            math.log(scaling["trained_tokens"] / (2 * math.pi * turns), theta) * width / 2 for turns in (fast, slow)
        ]
        if scaling["whole_pairs"]:
            ends = [math.floor(ends[0]), math.ceil(ends[1])]
        first, last = max(0, ends[0]), min(width - 1, ends[1])
        kept = 1 - (pair - first) / (last - first or 0.001)
    kept = min(1, max(0, kept))
    return frequency * (kept + (1 - kept) / factor)


def alibi_slope(head: int, heads: int) -> float:
    """Return the slope of ALiBi (https://arxiv.org/abs/2108.12409, section 3) of one of the heads, from 0.

    With 2^n heads, the slopes are a geometric sequence whose start and ratio are 2^(−8 / 2^n). Otherwise, heads beyond
    a power of two take the 1st, 3rd, … slope of the sequence for twice this power.
    """
    power = 1
    while 2 * power <= heads:
        power *= 2
    ratio = 2 ** (-8 / power)
    return float(ratio ** (head + 1) if head < power else math.sqrt(ratio) ** (2 * (head - power) + 1))


def rotate(rows: Array, rotations: Array) -> Array:
    """Rotate rows [n, head_dim]: each adjacent pair of columns is a complex number, turned by its row's position."""
    rotated = (rows[:, 0::2] + 1j * rows[:, 1::2]) * rotations
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


def rms_norm(x: Array, gamma: Array, eps: float) -> Array:
    """Return x / √(mean(x²) + eps) · gamma over the last axis."""
    normalized: Array = x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * gamma
    return normalized


def unit(vectors: Array) -> Array:
    """Scale vectors [..., d] to unit length."""
    scaled: Array = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    return scaled
