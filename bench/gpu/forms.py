"""Checks small models of every form of attention: masks, windows, biases, experts and head sizes."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.findings import Findings
from bench.gpu.correctness import check_model
from bench.gpu.models import random_model, write_random_model
from bench.gpu.settings import PRECISIONS, Precision, Settings
from headwaiter_export.config.decoder import DecoderConfig
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.config.presets import PRESETS

# Returns the file of a form's graph.
GraphOf = Callable[[str, Precision], Path]

_NO_BIASES = dict.fromkeys(
    ("query_bias", "key_bias", "value_bias", "output_bias", "up_bias", "down_bias", "embedding_norm"), False
)
_SMALL: Mapping[str, Any] = {"vocabulary_size": 8192, "d_model": 256, "d_ff": 512, "heads": 12, "head_dim": 64}
_PRE_NORM: Mapping[str, Any] = {**_NO_BIASES, "norm": "pre", "final_norm": True, "gated": True, "norm_eps": 1e-5}
_ROTARY: Mapping[str, Any] = {**_PRE_NORM, "positions": "rotary"}
_RMS_NORM: Mapping[str, Any] = {"rms_norm": True, "query_key_norm": True, "norm_eps": 1e-6}


def _form(**choices: Any) -> EncoderConfig:
    # The maximum is not a multiple of 8, so the server rounds it up.
    return EncoderConfig(**{**_SMALL, "layers": 1, "max_tokens": 1021, **choices})


# Some forms are named after a model that has them. Local layers need another attention kernel than global layers.
FORMS: Mapping[str, EncoderConfig] = {
    "local and global layers, as ModernBERT": _form(
        **_ROTARY, layers=2, local_layers=(0,), window=64, rotary_theta=160_000.0, first_norm=False, max_tokens=4093
    ),
    "causal with 32 heads, as Qwen3": _form(
        **{**_ROTARY, **_RMS_NORM},
        mask="causal",
        heads=32,
        head_dim=128,
        activation="silu",
        pooling="last",
        normalize=True,
    ),
    "ALiBi": _form(**_PRE_NORM, positions="alibi"),
    "distance table, as T5": _form(**_PRE_NORM, positions="none", distance_bias=True, rms_norm=True),
    # Its attention is gathered and computes all scores, so shorter sequences and fewer heads limit the memory.
    "distance products, as DeBERTa": _form(
        positions="none", distance_keys=True, distance_queries=True, heads=4, max_tokens=517
    ),
    "convolution, as DeBERTa v2": _form(convolution_kernel=3),
    "capped scores, as Gemma 2": _form(
        **{**_ROTARY, **_RMS_NORM, "norm": "sandwich"}, mask="causal", score_cap=50.0, heads=4, max_tokens=517
    ),
    "decoder over an encoder, as BART": _form(decoder=DecoderConfig(layers=1, d_ff=512, start_id=2), pooling="last"),
    "image patches with registers and heads of 80, as DINOv2": _form(
        vocabulary_size=0, feature_width=192, prefix_rows=5, heads=16, head_dim=80, norm="pre", pooling="cls"
    ),
    "local and global heads of 256, as EmbeddingGemma": _form(
        **{**_ROTARY, **_RMS_NORM, "norm": "sandwich"},
        layers=2,
        local_layers=(0,),
        window=256,
        heads=3,
        head_dim=256,
        activation="gelu_tanh",
    ),
    # With pooling, so that pooled vectors can be compared too.
    **{f"{name}, random weights": preset({"pooling": "mean"}) for name, preset in PRESETS.items()},
}


def forms(settings: Settings, findings: Findings) -> None:
    """Check every form in every precision."""
    with written_graphs(settings) as graph_of:
        for name, config in FORMS.items():
            with findings.attempt(name):
                encoder = random_model(config, settings)
                check_model(name, encoder, settings.effort.form_tokens, partial(graph_of, name), settings, findings)


@contextmanager
def written_graphs(settings: Settings) -> Iterator[GraphOf]:
    """Yield a function that returns the file of a form's graph, which other processes write meanwhile."""
    with TemporaryDirectory(dir=settings.folder) as folder:
        arguments = {
            (name, precision): (settings.effort.reduce(config), precision, Path(folder) / f"{number}.{precision}.onnx")
            for number, (name, config) in enumerate(FORMS.items())
            for precision in PRECISIONS
        }
        if not settings.effort.processes:
            yield lambda name, precision: write_random_model(*arguments[name, precision])
            return
        # A forked process would inherit CUDA, which works only in the process that initialised it.
        with ProcessPoolExecutor(settings.effort.processes, get_context("spawn")) as pool:
            files = {key: pool.submit(write_random_model, *each) for key, each in arguments.items()}
            try:
                yield lambda name, precision: files[name, precision].result()
            finally:
                pool.shutdown(cancel_futures=True)
