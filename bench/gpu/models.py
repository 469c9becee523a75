"""The models of the check: all-MiniLM-L6-v2 if its checkpoint is present, and random weights for other models."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from bench.gpu.settings import PRECISIONS, Precision, Settings
from bench.loads.traces import Trace
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
_NO_BIASES = ("query_bias", "key_bias", "value_bias", "output_bias", "up_bias", "down_bias", "embedding_norm")
_ROTARY: Mapping[str, Any] = {
    **dict.fromkeys(_NO_BIASES, False),
    "positions": "rotary",
    "norm": "pre",
    "final_norm": True,
    "gated": True,
    "norm_eps": 1e-5,
    "max_tokens": 8192,
}
_MODERN_BERT = {"vocabulary_size": 50_368, "d_model": 768, "heads": 12, "layers": 22, "d_ff": 1152, "window": 64}
_QWEN3 = {"vocabulary_size": 30_522, "d_model": 1024, "heads": 16, "head_dim": 128, "layers": 6, "d_ff": 3072}
_RMS_NORM: Mapping[str, Any] = {"rms_norm": True, "query_key_norm": True, "activation": "silu"}
# The weights of Qwen3-Embedding-0.6B's further layers and ids would only take time to write.
ROTARY_SHAPES = {
    "ModernBERT-base's shape": EncoderConfig.from_dict(
        {
            **_ROTARY,
            **_MODERN_BERT,
            "local_layers": [n for n in range(22) if n % 3],
            "first_norm": False,
            "rotary_theta": 160_000.0,
            "local_rotary_theta": 10_000.0,
        }
    ),
    "6 layers of Qwen3-Embedding-0.6B's shape": EncoderConfig.from_dict(
        {**_ROTARY, **_QWEN3, **_RMS_NORM, "mask": "causal", "pooling": "last", "rotary_theta": 1e6}
    ),
}


def full_size_models(settings: Settings) -> Iterator[tuple[str, Encoder]]:
    """Yield the name and encoder of the models with all their layers; each encoder is built only when needed."""
    name, encoder, _ = _minilm(settings)
    yield name, encoder
    yield "BERT-base, random weights", random_model(BERT_BASE, settings)


def _minilm(settings: Settings) -> tuple[str, Encoder, TextConfig]:
    if settings.checkpoint is None:
        encoder = random_model(MINILM, settings)
        tokenizer = made_up_tokenizer(encoder.config).to_str()
        return "all-MiniLM-L6-v2-shape", encoder, TextConfig(tokenizer, encoder.config.max_tokens)
    model = read_checkpoint(settings.checkpoint)
    assert model.text is not None
    return "all-MiniLM-L6-v2", model.encoder, model.text


def made_up_tokenizer(config: EncoderConfig) -> Tokenizer:
    """Return a tokenizer that gives each word one token: w7 has the id 7, and words without a number the id 0."""
    tokenizer = Tokenizer(WordLevel({f"w{number}": number for number in range(config.vocabulary_size)}, "w0"))
    tokenizer.pre_tokenizer = Whitespace()
    return tokenizer


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


def bert_bundle(settings: Settings) -> Path:
    """Write the bundle of BERT-base's shape, and return its folder."""
    return write_bundle(random_model(BERT_BASE, settings), None, "bert-base", settings)


def bert_trace(settings: Settings) -> tuple[Encoder, Trace]:
    """Return the encoder of BERT-base's shape, and the sequences that it encodes."""
    encoder, effort = random_model(BERT_BASE, settings), settings.effort
    # The mean length exceeds the median, so these sequences have at least `trace_tokens` tokens in total.
    sequences = effort.trace_tokens // effort.lengths.median_tokens
    return encoder, effort.lengths.trace(sequences, encoder.config.vocabulary_size).first(effort.trace_tokens)


def write_bundle(encoder: Encoder, text: TextConfig | None, name: str, settings: Settings) -> Path:
    """Write a bundle of the graphs that a server runs on CUDA, and return its folder."""
    folder = settings.folder / name
    if not folder.exists():
        export_bundle(encoder, text, folder, name, plans=[served_plan(each) for each in PRECISIONS])
    return folder
