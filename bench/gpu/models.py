"""The models of the check: all-MiniLM-L6-v2 if its checkpoint is present, and random weights for other models."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.gpu.settings import PRECISIONS, Precision, Settings
from headwaiter_export.bundle.export import export_bundle
from headwaiter_export.bundle.graphs import GRAPHS, GraphPlan
from headwaiter_export.checkpoints.reader import read_checkpoint
from headwaiter_export.checkpoints.texts import TextConfig
from headwaiter_export.checkpoints.weights import random_encoder
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_export.graphs.float16 import to_float16
from headwaiter_export.graphs.graph_layout import GraphLayout
from headwaiter_export.graphs.tracing import write_graph
from headwaiter_proto.encoder_pb2 import Precision as ProtoPrecision


def _bert(d_model: int, heads: int, layers: int, *, normalize: bool = False) -> EncoderConfig:
    sizes: Any = {"vocabulary_size": 30_522, "d_ff": 4 * d_model, "max_tokens": 512}
    return EncoderConfig(d_model=d_model, heads=heads, layers=layers, normalize=normalize, **sizes)


MINILM = _bert(384, 12, 6, normalize=True)
BERT_BASE = _bert(768, 12, 12)


def full_size_models(settings: Settings) -> Iterator[tuple[str, Encoder]]:
    """Yield the name and encoder of the models with all their layers; each encoder is built only when needed."""
    name, encoder, _ = _minilm(settings)
    yield name, encoder
    yield "BERT-base, random weights", random_model(BERT_BASE, settings)


def _minilm(settings: Settings) -> tuple[str, Encoder, TextConfig | None]:
    if settings.checkpoint is None:
        return "all-MiniLM-L6-v2-shape", random_model(MINILM, settings), None
    model = read_checkpoint(settings.checkpoint)
    return "all-MiniLM-L6-v2", model.encoder, model.text


def random_model(config: EncoderConfig, settings: Settings) -> Encoder:
    """Build an encoder with random weights."""
    return random_encoder(settings.effort.reduce(config), seed=0)


def write_random_model(config: EncoderConfig, precision: Precision, path: Path) -> Path:
    """Write the served graph of `random_model`; `config` is already reduced. Another process may run this function."""
    return write(random_encoder(config, seed=0), served_plan(precision).layout, precision, path)


def served_plan(precision: Precision) -> GraphPlan:
    """Return the plan of the graph that a server runs on CUDA in a precision."""
    value = ProtoPrecision.Value(f"PRECISION_{precision.upper()}")
    return next(plan for plan in GRAPHS if plan.provider == "cuda" and plan.precision == value)


def write(encoder: Encoder, layout: type[GraphLayout], precision: Precision, path: Path) -> Path:
    """Write one graph of a float32 encoder in a precision, and return its path."""
    folded = encoder.fold_temperatures()
    write_graph(to_float16(folded) if precision == "fp16" else folded, layout, path)
    return path


def minilm_bundle(settings: Settings) -> Path:
    """Write the bundle of all-MiniLM-L6-v2, or of random weights of its shape, and return its folder."""
    name, encoder, text = _minilm(settings)
    return write_bundle(encoder, text, name, settings)


def write_bundle(encoder: Encoder, text: TextConfig | None, name: str, settings: Settings) -> Path:
    """Write a bundle of the graphs that a server runs on CUDA, and return its folder."""
    folder = settings.folder / name
    if not folder.exists():
        export_bundle(encoder, text, folder, name, plans=[served_plan(each) for each in PRECISIONS])
    return folder
