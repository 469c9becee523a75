"""Compare packed batches of pairs with one pair at a time, for encoders with a decoder: BART's and T5's base sizes.

    python -m bench.studies.cross_attention

The weights are random, which does not change the time. The lengths are those of a query with a passage.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headwaiter_export.checkpoints.families.t5 import T5
from headwaiter_export.config.choices import DecoderInput, Pooling
from headwaiter_export.config.decoder import DecoderConfig
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.config.head import HeadActivation, HeadConfig, ScoreFunction
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_export.encoder.reference import random_sequences
from headwaiter_export.graphs.packed_cpu import PackedCpu
from headwaiter_export.graphs.tracing import write_graph
from headwaiter_server.runtime.graph import EncoderGraph
from headwaiter_server.runtime.packing import pack

VOCABULARY, PAIRS, ROUNDS = 32_128, 64, 5
MEDIAN_TOKENS = (30, 90)
_BASE: dict[str, Any] = {
    "vocabulary_size": VOCABULARY,
    "d_model": 768,
    "heads": 12,
    "d_ff": 3072,
    "max_tokens": 512,
    "pooling": Pooling.NONE,
}
MODELS: dict[str, dict[str, Any]] = {
    "BART, a row of the decoder for each token": {
        "layers": 6,
        "decoder": DecoderConfig(layers=6, d_ff=3072, start_id=2),
        "head": HeadConfig(
            ("no", "perhaps", "yes"), ScoreFunction.SOFTMAX, poolings=(Pooling.LAST,), activation=HeadActivation.TANH
        ),
    },
    "monoT5, the first row of the decoder": {
        **T5.fixed_fields,
        "layers": 12,
        "decoder": DecoderConfig(layers=12, d_ff=3072, start_id=0, input=DecoderInput.START),
        "head": HeadConfig(("score",), ScoreFunction.SIGMOID, bias=False),
    },
    "monoT5, all rows of the decoder": {
        **T5.fixed_fields,
        "layers": 12,
        "decoder": DecoderConfig(layers=12, d_ff=3072, start_id=0),
        "head": HeadConfig(("score",), ScoreFunction.SIGMOID, bias=False),
    },
    # The sizes of nn.Transformer, of which each part has half of the tokens on average.
    "a source and a target": {
        "d_model": 512,
        "heads": 8,
        "d_ff": 2048,
        "layers": 6,
        "decoder": DecoderConfig(layers=6, d_ff=2048, start_id=0, input=DecoderInput.TARGET),
    },
}


def main() -> None:
    """Print a line for each model and each median length."""
    rng = np.random.default_rng(0)
    for name, choices in MODELS.items():
        with tempfile.TemporaryDirectory() as folder:
            torch.manual_seed(0)
            config, path = EncoderConfig(**{**_BASE, **choices}), Path(folder) / "graph.onnx"
            write_graph(Encoder(config).eval(), PackedCpu, path)
            graph = EncoderGraph.open(path, "cpu")
        for median in MEDIAN_TOKENS:
            lengths = np.clip(rng.lognormal(np.log(median), 0.5, PAIRS), 8, 512).astype(int)
            pairs = random_sequences(config, lengths.tolist(), seed=median)
            together, alone = _seconds(graph, _batches(pairs)), _seconds(graph, [[pair] for pair in pairs])
            print(
                f"{name}, median {median} tokens: packed {PAIRS / together:.1f} pairs/s, one at a time "
                f"{PAIRS / alone:.1f}, ratio {alone / together:.2f}",
                flush=True,
            )


def _batches(pairs: list[Any]) -> list[list[Any]]:
    """Return the pairs in batches of about 512 tokens, in the order in which they came."""
    batches: list[list[Any]] = [[]]
    for pair in pairs:
        if sum(map(len, batches[-1])) + len(pair) > 512 and batches[-1]:
            batches.append([])
        batches[-1].append(pair)
    return batches


def _seconds(graph: EncoderGraph, batches: list[list[Any]]) -> float:
    """Return the seconds that the batches take, the fastest of some rounds."""
    seconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for batch in batches:
            graph.run(pack(batch), hidden=False)
        seconds.append(time.perf_counter() - start)
    return min(seconds)


if __name__ == "__main__":
    main()
