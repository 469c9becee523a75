"""A layer of each kind of model launches few kernels, and a batch copies nothing but its inputs and outputs."""

from pathlib import Path
from typing import Any

import pytest
import torch

from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.encoder.encoder import Encoder
from tests.support.cuda_double import build
from tests.support.cuda_double.environment import double_in, run_on
from tests.support.cuda_double.forms import PRECISIONS
from tests.support.cuda_double.log import Launch, Product, between, of, waits
from tests.support.cuda_double.models import write_encoder

if reason := build.why_unavailable():
    pytest.skip(reason, allow_module_level=True)

_SIZES = {"d_model": 128, "heads": 2, "d_ff": 256, "vocabulary_size": 32, "max_tokens": 512}
_NO_BIASES = dict.fromkeys(("query_bias", "key_bias", "value_bias", "output_bias", "up_bias", "down_bias"), False)
_PATCHES = {"vocabulary_size": 0, "feature_width": 48, "max_tokens": 17, "fixed_length": True, "embedding_norm": False}
_PRE_NORM = {"norm": "pre", "final_norm": True}
_RMS_NORM = {**_PRE_NORM, **_NO_BIASES, "embedding_norm": False, "rms_norm": True}
MODELS: dict[str, dict[str, Any]] = {
    "BERT": {},
    "MiniLM": {"heads": 4},
    "ModernBERT": {
        **_PRE_NORM,
        **_NO_BIASES,
        "positions": "rotary",
        "first_norm": False,
        "gated": True,
        "local_layers": (1, 3),
        "window": 64,
    },
    "Qwen3": {
        **_RMS_NORM,
        "positions": "rotary",
        "mask": "causal",
        "query_key_norm": True,
        "gated": True,
        "activation": "silu",
        "pooling": "last",
    },
    "T5": {**_RMS_NORM, "positions": "none", "distance_bias": True, "activation": "relu"},
    "ALiBi": {"positions": "alibi", "gated": True},
    "DeBERTa": {"positions": "none", "distance_keys": True, "distance_queries": True},
    "ViT": {**_PATCHES, **_PRE_NORM, "prefix_rows": 1, "pooling": "cls"},
    "DINOv3": {**_PATCHES, **_PRE_NORM, "positions": "rotary_grid"},
}
# Kernels and matrix products of a layer in fp16 and fp32.
LAUNCHES = {
    "BERT": (9, 13),
    "MiniLM": (9, 13),
    "ModernBERT": (14, 14),
    "Qwen3": (16, 16),
    "T5": (12, 13),
    "ALiBi": (12, 16),
    "DeBERTa": (35, 33),
    "ViT": (9, 13),
    "DINOv3": (15, 15),
}
# What a layer launches is the difference between two encoders, divided by the difference of their layers.
LAYERS = (2, 4)


def write(folder: Path, name: str, layers: int) -> Path:
    """Write the graphs of a model with this number of layers."""
    torch.manual_seed(0)
    choices = {**_SIZES, **MODELS[name], "layers": layers}
    if "local_layers" in choices:
        choices["local_layers"] = tuple(number for number in choices["local_layers"] if number < layers)
    encoder = Encoder(EncoderConfig.from_dict(choices)).eval()
    return write_encoder(folder / f"{name}-{layers}", encoder, "fp32", "fp16")


@pytest.mark.exhaustive
def test_layers_launch_these_numbers_of_kernels_and_batches_wait_four_times(tmp_path: Path) -> None:
    double = double_in(tmp_path)
    folders = [f"{name}-{layers}={write(tmp_path, name, layers)}" for name in MODELS for layers in LAYERS]
    run_on(double, "forms", "1", *folders)
    log = double.log.events()

    def launches_of_a_layer(name: str, precision: str) -> float:
        launches = []
        for layers in LAYERS:
            mark = f"{name}-{layers} {precision} 0 several"
            events = between(log, mark, f"{mark} end")
            launches.append(len(of(Launch, events)) + len(of(Product, events)))
            # Once for each output, and twice at the end of a batch.
            assert len(waits(events)) == 4
        return (launches[1] - launches[0]) / (LAYERS[1] - LAYERS[0])

    found = {name: tuple(launches_of_a_layer(name, precision) for precision in PRECISIONS) for name in MODELS}
    assert found == LAUNCHES
