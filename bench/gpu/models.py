"""The encoders that are checked: by shape with random weights, all-MiniLM-L6-v2 with its own where it is at hand."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from bench.gpu.setting import Precision, Setting
from headwaiter_export.bundle import GRAPHS, GraphPlan, export_bundle, halve
from headwaiter_export.checkpoints import read_checkpoint
from headwaiter_export.config import EncoderConfig, Positions, TextConfig
from headwaiter_export.encoder import Encoder
from headwaiter_export.graphs import Written, write_graph
from headwaiter_export.presets import PRESETS
from headwaiter_export.weights import random_encoder
from headwaiter_proto.encoder_pb2 import PRECISION_FP16, PRECISION_FP32
from headwaiter_proto.encoder_pb2 import Precision as ProtoPrecision
from headwaiter_proto.manifest_pb2 import LOWERING_PORTABLE

_BERT_WORDS = 30_522
MINILM = EncoderConfig(
    vocabulary_size=_BERT_WORDS, d_model=384, heads=12, layers=6, d_ff=1536, max_tokens=512, normalize=True
)
BERT_BASE = EncoderConfig(vocabulary_size=_BERT_WORDS, d_model=768, heads=12, layers=12, d_ff=3072, max_tokens=512)
BERT_LARGE = EncoderConfig(vocabulary_size=_BERT_WORDS, d_model=1024, heads=16, layers=24, d_ff=4096, max_tokens=512)
ROTARY = replace(BERT_BASE, layers=6, max_tokens=4096, positions=Positions.ROTARY)

_PRECISIONS: dict[Precision, ProtoPrecision] = {"fp32": PRECISION_FP32, "fp16": PRECISION_FP16}


def every_model(setting: Setting) -> Iterator[tuple[str, Encoder]]:
    """Yield every model to check with its name, built when its turn comes."""
    if setting.checkpoint is None:
        yield "all-MiniLM-L6-v2's shape", random_model(MINILM, setting)
    else:
        yield "all-MiniLM-L6-v2", read_checkpoint(setting.checkpoint).encoder
    for name, config in (("BERT-base", BERT_BASE), ("BERT-large", BERT_LARGE), ("rotary, 4,096 tokens", ROTARY)):
        yield f"{name}, random", random_model(config, setting)
    for name, preset in PRESETS.items():
        # Pooled too, so that there is something to compare.
        yield f"{name}, random", random_model(preset({"pooling": "mean"}), setting)


def random_model(config: EncoderConfig, setting: Setting) -> Encoder:
    """Build an encoder of a shape, reduced where there is no card."""
    return random_encoder(_reduced(config) if setting.tiny else config, seed=0)


def _reduced(config: EncoderConfig) -> EncoderConfig:
    """Return the smallest shape of the same kind: up to 64 tokens and two layers."""
    words = min(config.vocabulary_size, 512)
    if not config.takes_tokens:
        return replace(config, layers=min(config.layers, 2), max_tokens=64)
    return replace(
        config,
        vocabulary_size=words,
        d_model=64,
        heads=4,
        head_dim=16,
        value_dim=16,
        layers=2,
        d_ff=128,
        max_tokens=64,
    )


def served_plan(setting: Setting, precision: Precision) -> GraphPlan:
    """Return which graph a server runs on the provider at a precision."""
    return next(
        plan
        for plan in GRAPHS
        if plan.provider == setting.provider
        and plan.precision == _PRECISIONS[precision]
        and plan.kind != LOWERING_PORTABLE
    )


def write(encoder: Encoder, lowering: type[Written], precision: Precision, path: Path) -> Path:
    """Write one graph of an encoder in float32 at a precision, and return where."""
    folded = encoder.folded()
    write_graph(halve(folded) if precision == "fp16" else folded, lowering, path)
    return path


def minilm_bundle(setting: Setting) -> Path:
    """Write the bundle of all-MiniLM-L6-v2, or of its shape, and return its folder."""
    if setting.checkpoint is None:
        return write_bundle(random_model(MINILM, setting), None, "all-MiniLM-L6-v2-shape", setting)
    model = read_checkpoint(setting.checkpoint)
    return write_bundle(model.encoder, model.text, "all-MiniLM-L6-v2", setting)


def write_bundle(encoder: Encoder, text: TextConfig | None, name: str, setting: Setting) -> Path:
    """Write a bundle of the graphs that a server runs on the provider, and return its folder."""
    folder = setting.folder / name
    if not folder.exists():
        export_bundle(encoder, text, folder, name, plans=[served_plan(setting, each) for each in setting.precisions])
    return folder
