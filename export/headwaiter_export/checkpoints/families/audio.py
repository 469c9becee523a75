"""The families of audio: the audio spectrogram transformer, and the encoder of Whisper."""

from dataclasses import dataclass, replace

from torch import Tensor
from typing_extensions import override

from headwaiter_export.checkpoints.families.family import Family, SequenceHead
from headwaiter_export.checkpoints.families.images import DEIT, SIGLIP_VISION, VIT, PatchInput
from headwaiter_export.checkpoints.json_files import CheckpointJson
from headwaiter_export.config.choices import Pooling
from headwaiter_export.config.encoder import EncoderConfig


@dataclass(frozen=True)
class SpectrogramInput(PatchInput):
    """Patches that overlap, of a spectrogram [1, mel bins, frames] (https://arxiv.org/abs/2104.01778, section 2.1)."""

    @override
    def patch_shape(self, config_json: CheckpointJson) -> tuple[int, int, int]:
        patch_size = config_json.size("patch_size")
        return 1, patch_size, patch_size

    @override
    def patches(self, config_json: CheckpointJson) -> int:
        patch_size = config_json.size("patch_size")
        bins, frames = (config_json.size(name, least=patch_size) for name in ("num_mel_bins", "max_length"))
        down, across = (config_json.size(name) for name in ("frequency_stride", "time_stride"))
        return ((bins - patch_size) // down + 1) * ((frames - patch_size) // across + 1)


@dataclass(frozen=True)
class FrameInput:
    """The frames [n, d_model] of a sound after the convolutions of Whisper (https://arxiv.org/abs/2212.04356, 2.2).

    The positions belong to sounds of one length, to which `transformers` pads all sounds.
    """

    def sizes(self, config_json: CheckpointJson) -> dict[str, int]:
        """Read the sizes of the input, named as in EncoderConfig."""
        return {
            "feature_width": config_json.size("d_model"),
            "max_tokens": config_json.size("max_source_positions"),
        }

    def fold_tensors(self, tensors: dict[str, Tensor], config_json: CheckpointJson, config: EncoderConfig) -> None:
        """Leave all tensors as they are."""


AST = replace(
    DEIT,
    input=SpectrogramInput(tokens=("embeddings.cls_token", "embeddings.distillation_token")),
    tensor_prefix="audio_spectrogram_transformer.",
    default_pooling=Pooling.PREFIX_MEAN,
    sequence_head=SequenceHead("classifier.dense", norm="classifier.layernorm", poolings=(Pooling.PREFIX_MEAN,)),
)
WHISPER = Family(
    input=FrameInput(),
    tensor_prefix="model.",
    size_fields={
        "d_model": "d_model",
        "heads": "encoder_attention_heads",
        "layers": "encoder_layers",
        "d_ff": "encoder_ffn_dim",
    },
    activation_field="activation_function",
    module_names={"embedding.positions.table": "encoder.embed_positions", "norm": "encoder.layer_norm"},
    layer_prefix="encoder.layers",
    layer_module_names={
        **SIGLIP_VISION.layer_module_names,
        "attention_norm": "self_attn_layer_norm",
        "feed_forward.up": "fc1",
        "feed_forward.down": "fc2",
        "feed_forward_norm": "final_layer_norm",
    },
    ignored_prefixes=("encoder.conv1.", "encoder.conv2.", "decoder.", "proj_out."),
    fixed_fields={**VIT.fixed_fields, "feature_projection": False, "key_bias": False},
    norm_eps=1e-5,
)
