"""Count the launches, copies and waits of a batch of models of many kinds: print them as a table.

python -m tests.support.cuda_double.launches NAME...

The names are those of `MODELS`; without names, the table has all models.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.encoder.encoder import Encoder
from tests.support.cuda_double.environment import double_in
from tests.support.cuda_double.forms import PRECISIONS
from tests.support.cuda_double.log import Launch, Product, between, copies, of, waits
from tests.support.cuda_double.models import write_encoder
from tests.support.documents import ROOT

# What a layer launches is the difference between two encoders, divided by the difference of their layers.
_FEWER_LAYERS, _MORE_LAYERS = 2, 4
_BATCH = "several"
_SIZES = {"d_model": 128, "heads": 2, "d_ff": 256, "vocabulary_size": 32, "max_tokens": 512}
_NO_BIASES = dict.fromkeys(("query_bias", "key_bias", "value_bias", "output_bias", "up_bias", "down_bias"), False)
_PATCHES = {"vocabulary_size": 0, "feature_width": 48, "max_tokens": 17, "fixed_length": True, "embedding_norm": False}
_PRE_NORM = {"norm": "pre", "final_norm": True}
_RMS_NORM = {**_PRE_NORM, **_NO_BIASES, "embedding_norm": False, "rms_norm": True}
MODELS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
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
)


@dataclass(frozen=True)
class Counts:
    """What a batch does on a device.

    Attributes:
        layer: kernels and matrix products that each layer launches.
        others: those of everything else in a batch.
        copied: copies between host and device.
        copied_bytes: their bytes.
        waits: waits of the host for the device.
    """

    layer: float
    others: float
    copied: int
    copied_bytes: int
    waits: int


def count(names: Iterable[str], folder: Path) -> dict[str, Counts]:
    """Return the counts of models by their name and precision, such as "BERT fp16"; `folder` is empty."""
    names = list(names)
    models = [f"{name}-{layers}={_write(folder, name, layers)}" for name in names for layers in _LAYERS]
    double = double_in(folder)
    command = [sys.executable, "-m", "tests.support.cuda_double.forms", "1", *models]
    printed = subprocess.run(command, env=double.environment, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    found, events = json.loads(printed), double.log.events()

    def batch(name: str, layers: int, precision: str) -> list[Any]:
        label = f"{name}-{layers} {precision} 0"
        assert label in found
        return between(events, f"{label} {_BATCH}", f"{label} {_BATCH} end")

    return {
        f"{name} {precision}": _counts(*(batch(name, layers, precision) for layers in _LAYERS))
        for name in names
        for precision in PRECISIONS
    }


_LAYERS = (_FEWER_LAYERS, _MORE_LAYERS)


def _write(folder: Path, name: str, layers: int) -> Path:
    """Write the graphs of a model with this number of layers."""
    torch.manual_seed(0)
    choices = {**_SIZES, **MODELS[name], "layers": layers}
    if "local_layers" in choices:
        choices["local_layers"] = tuple(number for number in choices["local_layers"] if number < layers)
    encoder = Encoder(EncoderConfig.from_dict(choices)).eval()
    return write_encoder(folder / f"{name}-{layers}", encoder, "fp32", "fp16")


def _counts(fewer: list[Any], more: list[Any]) -> Counts:
    launches = [len(of(Launch, events)) + len(of(Product, events)) for events in (fewer, more)]
    layer = (launches[1] - launches[0]) / (_MORE_LAYERS - _FEWER_LAYERS)
    copied = [copy for copy in copies(fewer) if copy.direction != "device to device"]
    return Counts(
        layer,
        launches[0] - _FEWER_LAYERS * layer,
        len(copied),
        sum(copy.bytes for copy in copied),
        len(waits(fewer)),
    )


def _rows(found: Mapping[str, Counts]) -> Iterator[str]:
    yield "| model | launches of a layer | other launches of a batch | copies | bytes | waits |"
    yield "|---|---|---|---|---|---|"
    for name, each in found.items():
        yield (f"| {name} | {each.layer:g} | {each.others:g} | {each.copied} | {each.copied_bytes:,} | {each.waits} |")


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        for row in _rows(count(sys.argv[1:] or MODELS, Path(folder))):
            print(row)


if __name__ == "__main__":
    main()
