"""The parts of studies that need PyTorch. Each function runs in a process of its own, because PyTorch takes memory."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import transformers

from bench.loads.traces import MEDIAN_90
from bench.processes import SERVER_CORE, own_cpu_s, pin
from bench.studies.ceiling import floor_s, in_process_s, one_thread_session
from bench.studies.in_process import Planner
from headwaiter_export.bundle.export import export_bundle
from headwaiter_export.bundle.graphs import GRAPHS
from headwaiter_export.checkpoints.reader import read_checkpoint
from headwaiter_export.checkpoints.weights import random_encoder
from headwaiter_export.graphs.packed_cpu import PackedCpu
from headwaiter_export.graphs.tracing import write_graph
from headwaiter_server.runtime.graph import EncoderGraph
from headwaiter_server.runtime.model import open_model
from headwaiter_server.runtime.packing import pack
from testbed.minilm import checkpoint

_MAX_POSITIONS = 514
_LOCAL_LAYERS = 2


def tokens_per_cpu_s(name: str, attention: str, sequences: int, waiting: int, rounds: int) -> list[list[float]]:
    """Measure a model of random weights on one core.

    Args:
        name: start of the names of the classes in transformers, for models of their default configuration.
        attention: attention of transformers, "sdpa" or "eager".
        sequences: number of sequences, of log-normal lengths with a median of 90 tokens.
        waiting: number of sequences that wait in Headwaiter's queue; the others run one by one.
        rounds: number of rounds.

    Returns:
        The rates per round of Headwaiter, of ONNX Runtime with transformers' own export, of transformers, and of the
        matrix products alone. A sequence alone needs no mask, so ONNX Runtime and transformers get none.
    """
    pin(SERVER_CORE)
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        model = _save_random(Path(folder), name, attention)
        encoder = read_checkpoint(Path(folder)).encoder
        export_bundle(encoder, None, Path(folder, "bundle"), name, plans=GRAPHS[:1])
        ours = open_model(Path(folder, "bundle"), "cpu", "fp32", threads=1)
        session = one_thread_session(_export(model, Path(folder, "transformers.onnx")))
    planner, manifest, config = Planner(ours), ours.bundle.manifest, encoder.config
    trace = MEDIAN_90.trace(sequences, manifest.vocabulary_size)

    @torch.inference_mode()
    def by_transformers() -> None:
        for each in trace.sequences:
            model(torch.from_numpy(each)[None])

    def by_onnxruntime() -> None:
        for each in trace.sequences:
            session.run([session.get_outputs()[0].name], {session.get_inputs()[0].name: each[None]})

    implementations: list[Callable[[], Any]] = [
        lambda: in_process_s(trace.sequences, waiting, ours.graph, planner),
        by_onnxruntime,
        by_transformers,
    ]
    for warm_up in implementations:
        warm_up()
    seconds = []
    for number in range(rounds):
        # Alternate the order, because an implementation may disturb the next one.
        order = implementations[:: (-1) ** number]
        products_s = floor_s(trace.sequences, manifest, config.d_ff, planner.limits.tokens, gated=config.gated)
        seconds.append([*[own_cpu_s(each) for each in order][:: (-1) ** number], products_s])
    return [[trace.tokens / each for each in per_round] for per_round in zip(*seconds, strict=True)]


def _save_random(folder: Path, name: str, attention: str) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(
        max_position_embeddings=_MAX_POSITIONS, attn_implementation=attention
    )
    model = getattr(transformers, f"{name}Model")(config).eval()
    model.save_pretrained(folder)
    return model


def _export(model: Any, path: Path) -> Path:
    ids, length = torch.ones(1, 9, dtype=torch.int64), torch.export.Dim("length", min=2, max=512)
    torch.onnx.export(model, (ids,), path, dynamic_shapes=({1: length},), dynamo=True)
    return path


def local_layers_doubled(tokens: int, pairs: int) -> list[float]:
    """Return the ratio of the CPU times for 2 · `tokens` and for `tokens` tokens in local layers of ModernBERT-base."""
    pin(SERVER_CORE)
    with TemporaryDirectory() as folder:
        _save_random(Path(folder), "ModernBert", "sdpa")
        config = read_checkpoint(Path(folder)).encoder.config
        local = replace(config, layers=_LOCAL_LAYERS, local_layers=tuple(range(_LOCAL_LAYERS)), max_tokens=2 * tokens)
        path = Path(folder, "local.onnx")
        write_graph(random_encoder(local, seed=0), PackedCpu, path)
        graph = EncoderGraph.open(path, "cpu", threads=1)
    once, twice = (pack([np.arange(count)]) for count in (tokens, 2 * tokens))
    run = partial(graph.run, hidden=False)
    run(twice)
    return [own_cpu_s(partial(run, twice)) / own_cpu_s(partial(run, once)) for _ in range(pairs)]


def cross_encoder(folder: Path, pairs: Sequence[tuple[str, str]]) -> list[float]:
    """Save all-MiniLM-L6-v2 with a head of random weights for one score, and return transformers' scores of pairs."""
    torch.manual_seed(0)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(checkpoint(), num_labels=1).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint())
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    with torch.inference_mode():
        return [float(model(**tokenizer(*pair, return_tensors="pt")).logits.sigmoid()) for pair in pairs]
