"""An ONNX file of the caller as an encoder: the file computes the outputs, as the reference and in the graph.

Poolings that the file does not contain are ours, and so are modules after them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from typing_extensions import override

from headwaiter_export.config.after_pooling import ModuleKind
from headwaiter_export.config.choices import Pooling
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.config.field_checks import ConfigError
from headwaiter_export.config.head import HeadConfig
from headwaiter_export.encoder.attention_layout import AttentionLayout
from headwaiter_export.encoder.own_module import check_max_tokens
from headwaiter_export.encoder.padded_module import PaddedModuleEncoder, usual_sizes
from headwaiter_export.encoder.reference import Sequence, random_sequences
from headwaiter_export.graphs.onnx_file import OnnxFile
from headwaiter_proto.encoder_pb2 import PRECISION_FP32, ImageFormat
from headwaiter_proto.encoder_pb2 import Pooling as ProtoPooling
from headwaiter_proto.rules.pooling import POOLINGS, pool
from headwaiter_server.runtime.numeric_tolerances import TOLERANCES

_REASON = "an ONNX file is served with its own attention, which needs padding"
# Far above the rounding errors of a pooling in float16, and far below the difference between most poolings.
_ROUNDED_ERROR = 2e-3
# Tokens of the sequences on which the pooling of a file is found.
_COMPARED_TOKENS = (29, 17, 5)


class OnnxEncoder(PaddedModuleEncoder):
    """An ONNX file that gives rows [B, N, width], vectors [B, width], or logits [B, labels] or [B, N, labels].

    Attributes:
        file: the file.
        output: the name of its output that is served.
        image: the images whose patches are the rows of features; None for other files.
    """

    def __init__(
        self, config: EncoderConfig, file: OnnxFile, output: str, image: ImageFormat | None, *, gives_rows: bool
    ) -> None:
        super().__init__(config, nn.Identity())
        self.file, self.output, self.gives_rows = file, output, gives_rows
        # Servers call the precision of quantised weights int8.
        bits = f"; its products are in {file.number_format}" if file.weight_bits else ""
        self.reason = f"{_REASON}{bits}"
        self.image = image

    @classmethod
    def of_file(
        cls, file: OnnxFile, described: EncoderConfig, use: "OnnxUse", image: ImageFormat | None
    ) -> "OnnxEncoder":
        """Run a file on one sequence to learn the sizes of what it gives.

        Args:
            file: the file.
            described: what the files beside it say of the sequences it takes, and of what follows its rows.
            use: which output is served, and what follows it.
            image: the images that the file takes; None for other files.

        Raises:
            ConfigError: the file does not run, or gives other sizes.
        """
        check_max_tokens(described)
        (longest,) = random_sequences(described, [described.max_tokens])
        (output,) = _run(file, [use.output], described, longest, image)
        tokens = len(longest)
        shapes = {"pooled": [2], "hidden": [3], "logits": [2, 3]}[use.kind]
        if output.ndim not in shapes or (output.ndim == 3 and output.shape[1] != tokens):
            raise ConfigError(
                f"{file.path} gives {use.output} of the shape {[*output.shape]} for one sequence of {tokens:,} tokens: "
                "name other outputs with --outputs"
            )
        width, head = output.shape[-1], use.head
        if use.kind == "logits":
            if head is None or len(head.labels) != width:
                labels = "none" if head is None else len(head.labels)
                raise ConfigError(
                    f"{file.path} gives {width:,} logits, and the files beside it name {labels} labels: name each with "
                    "--labels"
                )
            head = HeadConfig(head.labels, head.function, per_token=output.ndim == 3)
        else:
            head = None
        pooling = use.pooling if use.kind == "hidden" else Pooling.MEAN if use.kind == "pooled" else Pooling.NONE
        make = _ConfigOfOneLength if image is not None else EncoderConfig
        config = make(
            vocabulary_size=described.vocabulary_size,
            token_types=described.token_types,
            feature_width=described.feature_width,
            max_tokens=described.max_tokens,
            fixed_length=described.fixed_length,
            prefix_rows=described.prefix_rows,
            **usual_sizes(width, described.vocabulary_size, file.shapes),
            pooling=pooling,
            after_pooling=described.after_pooling if use.kind == "hidden" and pooling is not Pooling.NONE else (),
            normalize=use.normalize and head is None,
            head=head,
        )
        return cls(config, file, use.output, image, gives_rows=use.kind == "hidden")

    @property
    @override
    def class_name(self) -> str:
        """Empty: no module of the caller is asked."""
        return ""

    @override
    def encode(self, tokens: Tensor, layout: AttentionLayout, token_types: Tensor | None = None) -> Tensor:
        """Return the rows [n, width] of one sequence, or its vector or logits [1, width]."""
        types = None if token_types is None else token_types.numpy()
        rows = tokens.numpy() if self.image is None else pixels(tokens.numpy(), self.image)
        (output,) = self.file.run([self.output], rows, types)
        values = torch.from_numpy(output.astype(np.float32))
        return values[0] if values.ndim == 3 else values


@dataclass(frozen=True, kw_only=True)
class _ConfigOfOneLength(EncoderConfig):
    """The configuration of a file that cannot run on a part of an image, as our own modules can."""

    @property
    @override
    def min_tokens(self) -> int:
        return self.max_tokens


def pixels(rows: NDArray[Any], image: ImageFormat) -> NDArray[Any]:
    """Return the pixels [channels, height, width] of patches, without the rows before them."""
    channels, size = image.channels, image.patch_size
    high, wide = image.height // size, image.width // size
    grid = rows[len(rows) - high * wide :].reshape(high, wide, channels, size, size)
    return grid.transpose(2, 0, 3, 1, 4).reshape(channels, high * size, wide * size)


@dataclass(frozen=True)
class OnnxUse:
    """Which output of a file is served, and what follows it.

    Attributes:
        kind: hidden, pooled or logits.
        output: its name.
        pooling: how hidden rows become one vector.
        normalize: whether vectors are scaled to unit length.
        head: the labels of logits.
        found: how the file's own vectors are made, or why they are left out, for the log; empty for other files.
    """

    kind: str
    output: str
    pooling: Pooling = Pooling.NONE
    normalize: bool = False
    head: HeadConfig | None = None
    found: str = ""


def choose_output(
    file: OnnxFile,
    outputs: Mapping[str, str],
    described: EncoderConfig,
    pooling: Pooling | None,
    normalize: bool | None,
    image: ImageFormat | None = None,
    *,
    has_modules: bool = False,
) -> OnnxUse:
    """Choose the output of a file to serve.

    Args:
        file: the file.
        outputs: the names of its known outputs, by kind.
        described: what the files beside it say.
        pooling: the pooling that the caller chose; None for that of the file, or of the files beside it.
        normalize: whether vectors are scaled to unit length, as the caller chose; None as for `pooling`.
        image: the images that the file takes; None for other files.
        has_modules: whether modules.json says what follows the rows. Then rows are served, and a vector of the file is
            left out, as in sentence-transformers.

    Raises:
        ConfigError: a vector of the file is not all that the files beside it describe.
    """
    head = described.head
    if "logits" in outputs and (head is not None or len(outputs) == 1):
        return OnnxUse("logits", outputs["logits"], head=head)
    scaled = described.normalize if normalize is None else normalize
    if "pooled" not in outputs or ("hidden" in outputs and (pooling is not None or has_modules)):
        own = Pooling.MEAN if described.pooling is Pooling.NONE and described.head else described.pooling
        left_out = f"{outputs['pooled']} is left out: other vectors are made of the rows" if "pooled" in outputs else ""
        return OnnxUse("hidden", outputs["hidden"], pooling or own, scaled, found=left_out)
    name = outputs["pooled"]
    if any(each.kind is ModuleKind.TRUNCATE for each in described.after_pooling):
        raise ConfigError(
            f"{file.path} gives vectors without rows, which the export cannot shorten: remove truncate_dim from "
            "config_sentence_transformers.json, and keep the first numbers in the program that gets the vectors"
        )
    found, is_unit = _find_poolings(
        file, [outputs[kind] for kind in ("hidden", "pooled") if kind in outputs], described, image
    )
    length = ", of unit length" if is_unit else ""
    scaled = is_unit or described.normalize if normalize is None else normalize
    if not found:
        return OnnxUse("pooled", name, normalize=scaled, found=f"{name} is the file's own vector{length}")
    others = f"; {' and '.join(found[1:])} cannot be told from it: --pooling chooses" if len(found) > 1 else ""
    return OnnxUse(
        "hidden", outputs["hidden"], found[0], scaled, found=f"{name} is the pooling {found[0]}{length}{others}"
    )


def _find_poolings(
    file: OnnxFile, names: list[str], described: EncoderConfig, image: ImageFormat | None
) -> tuple[list[Pooling], bool]:
    """Return which poolings of a file's rows give its vectors, the closest first, and whether they have unit length.

    `names` are the outputs of rows, if there are any, and of vectors. An empty list stands for no pooling of ours.
    """
    limit = TOLERANCES[PRECISION_FP32].pooled if file.precision == PRECISION_FP32 else _ROUNDED_ERROR
    assert limit is not None
    lengths = [described.max_tokens if image else min(n, described.max_tokens) for n in _COMPARED_TOKENS]
    runs = [_run(file, names, described, each, image) for each in random_sequences(described, lengths)]
    vectors = np.stack([outputs[-1][0].astype(np.float64) for outputs in runs])
    is_unit = bool(np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=limit))
    if len(names) == 1 or any(outputs[0].shape[-1] != vectors.shape[1] for outputs in runs):
        return [], is_unit
    errors = dict[Pooling, float]()
    for each in POOLINGS:
        name = Pooling(ProtoPooling.Name(each).removeprefix("POOLING_").lower())
        if is_unit and name is (Pooling.MEAN if described.pooling is Pooling.MEAN_SQRT_LEN else Pooling.MEAN_SQRT_LEN):
            # Of unit length, both are the same.
            continue
        pooled = np.stack([pool(outputs[0][0], each) for outputs in runs]).astype(np.float64)
        if is_unit:
            pooled /= np.maximum(np.linalg.norm(pooled, axis=1, keepdims=True), 1e-12)
        errors[name] = float(np.abs(pooled - vectors).max() / np.abs(vectors).max())
    return sorted((each for each in errors if errors[each] <= limit), key=errors.__getitem__), is_unit


def _run(
    file: OnnxFile, names: list[str], described: EncoderConfig, sequence: Sequence, image: ImageFormat | None
) -> list[NDArray[Any]]:
    if described.token_types:
        return file.run(names, sequence[:, 0], sequence[:, 1])
    return file.run(names, sequence if image is None else pixels(sequence, image))
