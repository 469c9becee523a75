"""wav2vec 2.0 (https://arxiv.org/abs/2006.11477), HuBERT and WavLM: encoders of the samples of a sound."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from headwaiter_export.checkpoints.activations import ACTIVATIONS
from headwaiter_export.checkpoints.families.distance_buckets import fold_buckets
from headwaiter_export.checkpoints.families.family import USUAL_SIZES, Family, SequenceHead
from headwaiter_export.checkpoints.json_files import CheckpointError, CheckpointJson
from headwaiter_export.checkpoints.weights import take_tensor
from headwaiter_export.config.choices import Norm, Pooling, Positions
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.config.field_checks import MAX_SIZE, ConfigError
from headwaiter_export.config.waveform import WaveformConfig

_MOST_CONVOLUTIONS = 16
_REQUIRED = {"add_adapter": False, "adapter_attn_dim": None, "use_weighted_layer_sum": False}
_CONVOLUTION = "feature_extractor.conv_layers.{}"
_POSITIONS = "encoder.pos_conv_embed.conv"
# The length and the direction of the kernel of the positions, as new and old releases of PyTorch name them.
_WEIGHT_NORMS = (("parametrizations.weight.original0", "parametrizations.weight.original1"), ("weight_g", "weight_v"))


@dataclass(frozen=True)
class WaveformInput:
    """Windows [n, samples] of a sound, which overlap."""

    def sizes(self, config_json: CheckpointJson) -> dict[str, Any]:
        """Read the convolutions, the places of the norms, and the most rows of a sequence."""
        waveform = _read_waveform(config_json)
        if config_json.size("hidden_size") % waveform.position_groups:
            raise config_json.error("num_conv_pos_embedding_groups", "it must divide hidden_size")
        stable = config_json.flag("do_stable_layer_norm", default=False)
        return {
            "waveform": waveform,
            "feature_width": waveform.window,
            "max_tokens": config_json.size("n_positions"),
            "norm": Norm.PRE if stable else Norm.POST,
            "final_norm": stable,
            "embedding_norm": not stable,
        }

    def fold_tensors(self, tensors: dict[str, Tensor], config_json: CheckpointJson, config: EncoderConfig) -> None:
        """Turn kernels of convolutions into weights of linear layers, and merge the linear layers of the head."""
        waveform = config.waveform
        assert waveform is not None
        inputs = 1
        for number, (width, kernel) in enumerate(zip(waveform.widths, waveform.kernels, strict=True)):
            name = f"{_CONVOLUTION.format(number)}.conv.weight"
            # From [width, inputs, kernel]: the linear layer has the inputs of a neighbour beside each other.
            tensors[name] = take_tensor(tensors, name, (width, inputs, kernel)).transpose(1, 2).flatten(1)
            inputs = width
        groups = waveform.position_groups
        width = config.d_model // groups
        positions = _take_position_kernel(tensors, (config.d_model, width, waveform.position_kernel))
        # The outputs of a group are neighbours in [d_model, width, kernel].
        positions = positions.view(groups, width, width, -1).permute(0, 3, 2, 1).flatten(1, 2)
        tensors[f"{_POSITIONS}.weight"] = positions
        if config.head is not None and not config.head.per_token:
            _merge_head(tensors, config_json, config)


@dataclass(frozen=True)
class GatedInput(WaveformInput):
    """Windows of a sound, for attention that gates a number for each distance between rows."""

    @override
    def sizes(self, config_json: CheckpointJson) -> dict[str, Any]:
        exact = config_json.size("num_buckets", least=4) // 4
        if config_json.size("max_bucket_distance") <= exact:
            raise config_json.error("max_bucket_distance", f"it must be more than {exact}, a quarter of num_buckets")
        sizes = super().sizes(config_json)
        return {**sizes, "waveform": replace(sizes["waveform"], gates_distances=True)}

    @override
    def fold_tensors(self, tensors: dict[str, Tensor], config_json: CheckpointJson, config: EncoderConfig) -> None:
        """Also give each layer the number of each distance, and merge the parts of the gates."""
        super().fold_tensors(tensors, config_json, config)
        buckets, farthest = config_json.size("num_buckets"), config_json.size("max_bucket_distance")
        embedding = "encoder.layers.0.attention.rel_attn_embed"
        fold_buckets(tensors, embedding, config, buckets, farthest, rounds_sums=True)
        table = tensors.pop(f"{embedding}.table")[..., None]
        for layer in range(config.layers):
            module = f"encoder.layers.{layer}.attention"
            constants = take_tensor(tensors, f"{module}.gru_rel_pos_const", (1, config.heads, 1, 1))
            weight = take_tensor(tensors, f"{module}.gru_rel_pos_linear.weight", (8, config.head_dim))
            bias = take_tensor(tensors, f"{module}.gru_rel_pos_linear.bias", (8,))
            tensors |= {
                f"{module}.gated_distances.table": table,
                f"{module}.gated_distances.constants": constants.flatten(),
                # Each gate is computed from a sum of four outputs.
                f"{module}.gru_rel_pos_linear.weight": weight.view(2, 4, -1).sum(1),
                f"{module}.gru_rel_pos_linear.bias": bias.view(2, 4).sum(1),
            }


def _read_waveform(config_json: CheckpointJson) -> WaveformConfig:
    widths, kernels, strides = (_read_sizes(config_json, name) for name in ("conv_dim", "conv_kernel", "conv_stride"))
    if not len(widths) == len(kernels) == len(strides):
        raise config_json.error("conv_kernel", "conv_dim and conv_stride must have as many numbers")
    if config_json.values.get("num_feat_extract_layers", len(widths)) != len(widths):
        raise config_json.error("num_feat_extract_layers", f"conv_dim has {len(widths)} numbers")
    try:
        return WaveformConfig(
            widths=widths,
            kernels=kernels,
            strides=strides,
            bias=config_json.flag("conv_bias", default=False),
            norms_channels=config_json.choice("feat_extract_norm", {"group": True, "layer": False}),
            activation=config_json.choice("feat_extract_activation", ACTIVATIONS),
            final_norm=config_json.flag("feat_proj_layer_norm", default=True),
            position_kernel=config_json.size("num_conv_pos_embeddings"),
            position_groups=config_json.size("num_conv_pos_embedding_groups"),
        )
    except ConfigError as error:
        raise config_json.error("conv_kernel", f"with the conv_stride {[*strides]}, {error}") from None


def _read_sizes(config_json: CheckpointJson, name: str) -> tuple[int, ...]:
    """Return a field that must be a list of sizes, one for each convolution."""
    sizes = config_json.values.get(name)
    if not isinstance(sizes, list) or not 1 <= len(sizes) <= _MOST_CONVOLUTIONS:
        raise config_json.error(name, f"it must be a list of 1 to {_MOST_CONVOLUTIONS} whole numbers")
    if not all(type(size) is int and 1 <= size <= MAX_SIZE for size in sizes):
        raise config_json.error(name, f"its numbers must be whole numbers from 1 to {MAX_SIZE}")
    return tuple(sizes)


def _take_position_kernel(tensors: dict[str, Tensor], shape: tuple[int, int, int]) -> Tensor:
    """Remove the kernel of the positions from `tensors`, and return it.

    The kernel is g · v / ‖v‖, with one length g for each neighbour (https://arxiv.org/abs/1602.07868).
    """
    lengths, directions = next(
        (names for names in _WEIGHT_NORMS if f"{_POSITIONS}.{names[0]}" in tensors), _WEIGHT_NORMS[0]
    )
    g = take_tensor(tensors, f"{_POSITIONS}.{lengths}", (1, 1, shape[2]))
    v = take_tensor(tensors, f"{_POSITIONS}.{directions}", shape)
    kernel: Tensor = g * v / torch.linalg.vector_norm(v, dim=(0, 1), keepdim=True)
    if not kernel.isfinite().all():
        raise CheckpointError(f"tensor {_POSITIONS}.{directions} gives NaN or infinity: a part has the length 0")
    return kernel


def _merge_head(tensors: dict[str, Tensor], config_json: CheckpointJson, config: EncoderConfig) -> None:
    """Replace the two linear layers of the head, which have no activation between them, by one."""
    assert config.head is not None
    width, labels = config_json.size("classifier_proj_size"), len(config.head.labels)
    projector = take_tensor(tensors, "projector.weight", (width, config.width)).double()
    projector_bias = take_tensor(tensors, "projector.bias", (width,)).double()
    classifier = take_tensor(tensors, "classifier.weight", (labels, width)).double()
    classifier_bias = take_tensor(tensors, "classifier.bias", (labels,)).double()
    tensors["classifier.weight"] = (classifier @ projector).float()
    tensors["classifier.bias"] = (classifier @ projector_bias + classifier_bias).float()


WAV2VEC2 = Family(
    input=WaveformInput(),
    tensor_prefix="wav2vec2.",
    size_fields=USUAL_SIZES,
    activation_field="hidden_act",
    module_names={
        **{
            f"embedding.tokens.convolutions.{number}.{ours}": f"{_CONVOLUTION.format(number)}.{theirs}"
            for number in range(_MOST_CONVOLUTIONS)
            for ours, theirs in {"linear": "conv", "norm": "layer_norm", "channel_norm": "layer_norm"}.items()
        },
        "embedding.tokens.norm": "feature_projection.layer_norm",
        "embedding.tokens.projection": "feature_projection.projection",
        "embedding.tokens.positions": _POSITIONS,
        "embedding.norm": "encoder.layer_norm",
        "norm": "encoder.layer_norm",
    },
    layer_prefix="encoder.layers",
    layer_module_names={
        "attention.query": "attention.q_proj",
        "attention.key": "attention.k_proj",
        "attention.value": "attention.v_proj",
        "attention.output": "attention.out_proj",
        "attention_norm": "layer_norm",
        "feed_forward.up": "feed_forward.intermediate_dense",
        "feed_forward.down": "feed_forward.output_dense",
        "feed_forward_norm": "final_layer_norm",
    },
    # Parts of training, and of heads that a pooling of sentence-transformers replaces.
    ignored_prefixes=("masked_spec_embed", "quantizer.", "project_q.", "project_hid.", "projector.", "lm_head."),
    fixed_fields={"positions": Positions.NONE},
    # The model has no limit of its own: 1,500 rows are 30 seconds.
    default_values={"n_positions": 1500},
    required_fields={**_REQUIRED, "feat_proj_layer_norm": True},
    sequence_head=SequenceHead("classifier", poolings=(Pooling.MEAN,)),
)
HUBERT = replace(WAV2VEC2, tensor_prefix="hubert.", required_fields={**_REQUIRED, "conv_pos_batch_norm": False})
WAVLM = replace(
    HUBERT,
    input=GatedInput(),
    tensor_prefix="wavlm.",
    layer_module_names={
        **HUBERT.layer_module_names,
        "attention.gated_distances": "attention.gated_distances",
        "attention.gated_distances.linear": "attention.gru_rel_pos_linear",
    },
    required_fields=WAV2VEC2.required_fields,
)


def with_ctc_head(family: Family) -> Family:
    """Return the family of a model that scores characters for each row."""
    return replace(family, sequence_head=SequenceHead("lm_head", scores_tokens=True))
