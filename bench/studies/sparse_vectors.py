"""Compare time and memory of sparse vectors with those of dense vectors: BERT's sizes, 30,522 token ids, one batch.

    python -m bench.studies.sparse_vectors

Each graph runs in a process of its own, in turns. The weights are random, which changes neither time nor memory.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from headwaiter_server.runtime.graph import EncoderGraph
from headwaiter_server.runtime.packing import pack

VOCABULARY, TOKENS, LENGTHS = 30_522, 4096, (64, 30, 90)
ROUNDS = 3


def write(folder: Path) -> None:
    """Write the graphs of a BERT with mean pooling, and of the same BERT with sparse vectors."""
    import torch

    from headwaiter_export.config.choices import Pooling
    from headwaiter_export.config.encoder import EncoderConfig
    from headwaiter_export.config.head import HeadActivation
    from headwaiter_export.config.vocabulary_head import VocabularyHeadConfig
    from headwaiter_export.encoder.encoder import Encoder
    from headwaiter_export.graphs.packed_cpu import PackedCpu
    from headwaiter_export.graphs.tracing import write_graph

    sizes: dict[str, Any] = {
        "vocabulary_size": VOCABULARY,
        "d_model": 768,
        "heads": 12,
        "layers": 12,
        "d_ff": 3072,
        "max_tokens": 512,
    }
    heads: dict[str, dict[str, Any]] = {
        "dense": {"pooling": Pooling.MEAN},
        "sparse": {"pooling": Pooling.MAX, "vocabulary_head": VocabularyHeadConfig(HeadActivation.GELU)},
    }
    for name, choices in heads.items():
        torch.manual_seed(0)
        (folder / name).mkdir()
        write_graph(Encoder(EncoderConfig(**sizes, **choices)).eval(), PackedCpu, folder / name / "graph.onnx")


def measure(path: Path, length: int) -> dict[str, float]:
    """Return the seconds of a batch of sequences of one length, and the MiB that running it took."""
    graph = EncoderGraph.open(path, "cpu")
    rng = np.random.default_rng(0)
    batch = graph.prepare(pack([rng.integers(VOCABULARY, size=length) for _ in range(TOKENS // length)]))
    small = graph.prepare(pack([rng.integers(VOCABULARY, size=8)]))
    graph.run(small, hidden=False)
    # Opening a graph takes more memory for a moment than running it: the peak counts from here.
    Path("/proc/self/clear_refs").write_text("5")
    before = _status_kib("VmRSS")
    graph.run(batch, hidden=False)
    peak = _status_kib("VmHWM")
    start = time.perf_counter()
    graph.run(batch, hidden=False)
    return {"seconds": time.perf_counter() - start, "MiB": (peak - before) / 1024}


def _status_kib(field: str) -> int:
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[field].split()[0])


def main() -> None:
    """Write the graphs, and print a row for each length."""
    parser = argparse.ArgumentParser()
    parser.add_argument("graph", nargs="?", type=Path)
    parser.add_argument("length", nargs="?", type=int)
    options = parser.parse_args()
    if options.graph is not None:
        print(json.dumps(measure(options.graph, options.length)))
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "bench.studies.sparse_vectors"]
        write(Path(folder))
        for length in LENGTHS:
            found: dict[str, list[dict[str, float]]] = {"dense": [], "sparse": []}
            for _ in range(ROUNDS):
                for name, runs in found.items():
                    graph = str(Path(folder) / name / "graph.onnx")
                    runs.append(json.loads(subprocess.check_output([*command, graph, str(length)])))
            seconds = {name: min(run["seconds"] for run in runs) for name, runs in found.items()}
            memory = {name: max(run["MiB"] for run in runs) for name, runs in found.items()}
            tokens = TOKENS // length * length
            print(
                f"{TOKENS // length} sequences of {length} tokens: dense {tokens / seconds['dense']:,.0f} tokens/s, "
                f"sparse {tokens / seconds['sparse']:,.0f} ({seconds['dense'] / seconds['sparse']:.2f} of dense); "
                f"sparse takes {memory['sparse'] - memory['dense']:.0f} MiB more than dense ({memory['dense']:.0f})"
            )


if __name__ == "__main__":
    main()
