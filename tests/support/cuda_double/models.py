"""Write tiny encoders of many forms as CUDA graphs, with the manifest that a server reads."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import torch
from google.protobuf import json_format

from headwaiter_export.config.choices import Activation, DecoderInput, Pooling
from headwaiter_export.config.decoder import DecoderConfig
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.config.head import HeadActivation, HeadConfig, ScoreFunction
from headwaiter_export.config.vocabulary_head import VocabularyHeadConfig
from headwaiter_export.config.waveform import WaveformConfig
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_export.graphs.float16 import in_float16
from headwaiter_export.graphs.packed_cuda import PackedCuda, bias_heads
from headwaiter_export.graphs.tracing import write_graph
from headwaiter_proto.encoder_pb2 import TargetFormat
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_server.runtime.bundle import MANIFEST

Precision = Literal["fp16", "fp32"]
_SIZES = {"d_model": 16, "heads": 2, "head_dim": 8, "d_ff": 16, "layers": 1, "vocabulary_size": 32}
# Positions that have no table, so that the longest sequence can be as long as CUDA's kernels allow.
_LONG = {"positions": "rotary", "max_tokens": 65_536}


@dataclass(frozen=True)
class Form:
    """A form of encoder.

    Attributes:
        precision: that of its graph.
        choices: fields of the configuration that differ from a small encoder of token ids.
    """

    precision: Precision
    choices: Mapping[str, Any]


# Forms that the bundle "tiny-text", a BERT, does not have. Some are named after a model that has them.
FORMS: Mapping[str, Form] = MappingProxyType(
    {
        "causal": Form("fp16", {**_LONG, "mask": "causal", "query_key_norm": True, "head_dim": 16}),
        "t5": Form("fp16", {"positions": "none", "distance_bias": True, "max_tokens": 512}),
        "deberta": Form(
            "fp16",
            {
                "d_model": 384,
                "heads": 6,
                "head_dim": 64,
                "positions": "none",
                "distance_keys": True,
                "distance_queries": True,
                "max_tokens": 512,
            },
        ),
    }
)

# Forms that only exhaustive tests run: each takes three seconds.
OTHER_FORMS: Mapping[str, Form] = MappingProxyType(
    {
        "local": Form("fp16", {**_LONG, "layers": 2, "local_layers": (1,), "window": 64}),
        "alibi": Form("fp32", {"positions": "alibi", "heads": 32, "max_tokens": 65_536}),
        "registers": Form(
            "fp16",
            {
                "vocabulary_size": 0,
                "feature_width": 8,
                "prefix_rows": 5,
                "head_dim": 80,
                "max_tokens": 21,
                "fixed_length": True,
            },
        ),
        "experts": Form("fp32", {"experts": 4, "active_experts": 2, "max_tokens": 64}),
        # The layers of the encoder, and the attention to them, have no mask.
        "decoder": Form(
            "fp16", {"decoder": DecoderConfig(layers=1, d_ff=16, start_id=2), "pooling": "last", "max_tokens": 512}
        ),
        # One query for each sequence.
        "first-row": Form(
            "fp16",
            {
                "decoder": DecoderConfig(layers=1, d_ff=16, start_id=2, input=DecoderInput.START),
                "head": HeadConfig(("no", "yes"), ScoreFunction.SOFTMAX),
                "max_tokens": 512,
            },
        ),
        # The rows of a target attend to those of a source.
        "target": Form(
            "fp16",
            {
                "decoder": DecoderConfig(layers=1, d_ff=16, start_id=2, input=DecoderInput.TARGET),
                "pooling": Pooling.NONE,
                "max_tokens": 512,
            },
        ),
        # Logits of several parts of the vocabulary.
        "sparse": Form(
            "fp16",
            {
                "vocabulary_size": 5_000,
                "pooling": Pooling.MAX,
                "vocabulary_head": VocabularyHeadConfig(HeadActivation.GELU),
                "max_tokens": 512,
            },
        ),
        "large-heads": Form("fp16", {"head_dim": 256, "max_tokens": 64}),
        "masked-tokens": Form("fp16", {"mask_id": 3, "positions": "rotary", "max_tokens": 512}),
        "convolution": Form("fp16", {"convolution_kernel": 3, "max_tokens": 512}),
        **{
            name: Form(
                "fp16",
                {
                    "vocabulary_size": 0,
                    "feature_width": 30,
                    "waveform": WaveformConfig(
                        widths=(16, 16, 16),
                        kernels=(10, 3, 2),
                        strides=(5, 2, 2),
                        bias=True,
                        norms_channels=norms_channels,
                        activation=Activation.GELU,
                        final_norm=True,
                        position_kernel=20,
                        position_groups=4,
                        gates_distances=gates_distances,
                    ),
                    "positions": "none",
                    "max_tokens": 512,
                },
            )
            for name, norms_channels, gates_distances in (
                ("sounds", False, False),
                ("sounds-by-channel", True, False),
                ("gated-sounds", False, True),
            )
        },
        "capped": Form("fp16", {"score_cap": 30.0, "max_tokens": 512}),
        "attention-pooling": Form("fp16", {"pooling": Pooling.ATTENTION, "max_tokens": 512}),
    }
)


def graph_file(precision: Precision) -> str:
    """Return the file name of a graph, the same as in a bundle."""
    return f"packed-cuda.{precision}.onnx"


def write_models(forms: Mapping[str, Form], folder: Path) -> None:
    """Write the models of several forms to a new folder."""
    folder.mkdir()
    for name, form in forms.items():
        write_model(folder / name, form)


def write_model(folder: Path, form: Form) -> Path:
    """Write a form's graph and its manifest without checksums to a new folder, and return the folder."""
    torch.manual_seed(0)
    encoder = Encoder(EncoderConfig(**{**_SIZES, **form.choices})).eval().fold_temperatures().merge_dense()
    return write_encoder(folder, encoder, form.precision)


def write_encoder(folder: Path, encoder: Encoder, *precisions: Precision) -> Path:
    """Write an encoder's graphs and its manifest without checksums to a new folder, and return the folder."""
    folder.mkdir()
    for precision in precisions:
        with torch.no_grad(), in_float16(encoder) if precision == "fp16" else nullcontext(encoder) as written:
            write_graph(written, PackedCuda, folder / graph_file(precision))
    config = encoder.config
    manifest = Manifest(
        name=folder.name,
        vocabulary_size=config.vocabulary_size,
        feature_width=config.feature_width,
        min_tokens=config.min_tokens,
        max_tokens=config.max_tokens,
        fixed_length=config.fixed_length,
        width=config.pooled_width,
        layers=config.attention_layers,
        first_row_layers=config.first_row_layers,
        convolution_values=config.convolution_values,
        heads=config.heads,
        head_dim=config.head_dim,
        value_dim=config.value_dim,
        bias_heads=bias_heads(config),
        pooling=f"POOLING_{config.pooling.name}",
        target=TargetFormat(start_id=2) if config.takes_target else None,
    )
    (folder / MANIFEST).write_text(json_format.MessageToJson(manifest), encoding="utf-8")
    return folder
