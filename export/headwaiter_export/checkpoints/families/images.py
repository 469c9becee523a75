"""The families of images: ViT, DeiT, DINOv2, DINOv3, CLIP and SigLIP.

Their rows are patches, after rows of zeros for the model's own tokens.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from headwaiter_export.checkpoints.families.family import USUAL_SIZES, Family, SequenceHead
from headwaiter_export.checkpoints.families.rotary import pair_neighbours
from headwaiter_export.checkpoints.json_files import CheckpointJson
from headwaiter_export.checkpoints.weights import take_tensor
from headwaiter_export.config.after_pooling import ModuleKind, PooledModule
from headwaiter_export.config.choices import Norm, Pooling, Positions
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_proto.encoder_pb2 import ImageFormat


@dataclass(frozen=True)
class PatchInput(ABC):
    """Rows of zeros for the tokens of the model, then the square patches of a picture in row-major order.

    Each patch [C, P, P] of a picture [C, H, W] is flattened, channels first. The convolution over patches thus becomes
    a linear layer on rows [tokens + patches, C·P·P] (https://arxiv.org/abs/2010.11929, section 3.1), which
    `headwaiter_client.patches` makes. The positions belong to a grid of one size, so all pictures have this size.

    Attributes:
        projection: the convolution.
        positions: the positions of `tokens` and of the patches.
        tokens: the tokens that have positions, in the order of their rows.
        registers: the tokens without positions, whose rows follow; empty if the family has none.
        projection_bias: whether the convolution has a bias.
    """

    projection: str = "embeddings.patch_embeddings.projection"
    positions: str = "embeddings.position_embeddings"
    tokens: tuple[str, ...] = ("embeddings.cls_token",)
    registers: str = ""
    projection_bias: bool = True

    def sizes(self, config_json: CheckpointJson) -> dict[str, int]:
        """Read the sizes of the input, named as in EncoderConfig."""
        registers = config_json.size("num_register_tokens", least=0) if self.registers else 0
        prefix_rows = len(self.tokens) + registers
        return {
            "feature_width": math.prod(self.patch_shape(config_json)),
            "max_tokens": prefix_rows + self.patches(config_json),
            "prefix_rows": prefix_rows,
        }

    def take_positions(self, tensors: dict[str, Tensor], config_json: CheckpointJson, config: EncoderConfig) -> Tensor:
        """Remove the positions of `tokens` and of the patches from `tensors`, and return them, [n, d_model]."""
        return _take_rows(tensors, self.positions, len(self.tokens) + self.patches(config_json), config.d_model)

    @abstractmethod
    def patch_shape(self, config_json: CheckpointJson) -> tuple[int, int, int]:
        """Return the shape (C, P, P) of a patch."""

    @abstractmethod
    def patches(self, config_json: CheckpointJson) -> int:
        """Return the number of patches."""

    def fold_tensors(self, tensors: dict[str, Tensor], config_json: CheckpointJson, config: EncoderConfig) -> None:
        """Replace the convolution by a linear layer on rows, and add the tokens of the model to their positions."""
        width = config.d_model
        kernel = take_tensor(tensors, f"{self.projection}.weight", (width, *self.patch_shape(config_json)))
        bias = take_tensor(tensors, f"{self.projection}.bias", (width,)) if self.projection_bias else torch.zeros(width)
        placed = len(self.tokens)
        registers = config.prefix_rows - placed
        table = self.take_positions(tensors, config_json, config)
        for row, name in enumerate(self.tokens):
            # The linear layer adds its bias to the rows of zeros too, so the bias is subtracted here.
            table[row] += _take_rows(tensors, name, 1, width)[0] - bias
        if self.registers:
            rows = _take_rows(tensors, self.registers, registers, width) - bias
            table = torch.cat((table[:placed], rows, table[placed:]))
        tensors |= {f"{self.projection}.weight": kernel.flatten(1), f"{self.projection}.bias": bias}
        tensors[f"{self.positions.removesuffix('.weight')}.weight"] = table


def _take_rows(tensors: dict[str, Tensor], name: str, rows: int, width: int) -> Tensor:
    """Remove a tensor of vectors from `tensors`, and return the vectors [rows, width].

    Checkpoints also have the shapes [1, rows, width] and, for a single vector, [width].
    """
    dimensions = max(tensors[name].ndim if name in tensors else 3, 1 if rows == 1 else 2)
    return take_tensor(tensors, name, (1, rows, width)[-dimensions:]).view(rows, width)


@dataclass(frozen=True)
class ImageInput(PatchInput):
    """Patches side by side, of a square image."""

    def resized(self, config: EncoderConfig, config_json: CheckpointJson, image: ImageFormat) -> EncoderConfig:
        """Return the configuration for images of the size to which the checkpoint's image processor brings them.

        Raises:
            CheckpointError: the positions belong to images of another size.
        """
        if (image.height, image.width) != 2 * (config_json.size("image_size"),):
            raise config_json.error(
                "image_size",
                f"the checkpoint's image processor makes images of {image.height} × {image.width}: correct one",
            )
        return config

    @override
    def patch_shape(self, config_json: CheckpointJson) -> tuple[int, int, int]:
        patch_size = config_json.size("patch_size")
        return config_json.size("num_channels"), patch_size, patch_size

    @override
    def patches(self, config_json: CheckpointJson) -> int:
        patch_size = config_json.size("patch_size")
        return (config_json.size("image_size", least=patch_size) // patch_size) ** 2


@dataclass(frozen=True)
class DinoInput(ImageInput):
    """The input of DINOv2, whose positions are interpolated for images of other sizes than those of its training.

    Attributes:
        antialias: whether the interpolation to a smaller grid takes the mean of more than 4 · 4 positions.
    """

    antialias: bool = False

    @override
    def sizes(self, config_json: CheckpointJson) -> dict[str, int]:
        d_ff = config_json.size("hidden_size") * config_json.size("mlp_ratio")
        if config_json.is_true("use_swiglu_ffn"):
            # The rounding of transformers.
            d_ff = (int(d_ff * 2 / 3) + 7) // 8 * 8
        return {**super().sizes(config_json), "d_ff": d_ff}

    @override
    def fold_tensors(self, tensors: dict[str, Tensor], config_json: CheckpointJson, config: EncoderConfig) -> None:
        """Also take the gate of the feed-forward blocks out of the linear layer that computes two halves."""
        super().fold_tensors(tensors, config_json, config)
        for layer in range(config.layers if config.gated else 0):
            block = f"encoder.layer.{layer}.mlp"
            for kind, shape in (("weight", (config.d_model,)), ("bias", ())):
                both = take_tensor(tensors, f"{block}.weights_in.{kind}", (2 * config.d_ff, *shape))
                tensors[f"{block}.gate.{kind}"], tensors[f"{block}.fc1.{kind}"] = both.chunk(2)
                name = f"{block}.weights_out.{kind}"
                out = (config.d_model, config.d_ff) if shape else (config.d_model,)
                tensors[f"{block}.fc2.{kind}"] = take_tensor(tensors, name, out)

    @override
    def resized(self, config: EncoderConfig, config_json: CheckpointJson, image: ImageFormat) -> EncoderConfig:
        if image.height != image.width or image.height < image.patch_size:
            return super().resized(config, config_json, image)
        return replace(config, max_tokens=config.prefix_rows + (image.height // image.patch_size) ** 2)

    @override
    def take_positions(self, tensors: dict[str, Tensor], config_json: CheckpointJson, config: EncoderConfig) -> Tensor:
        table, placed = super().take_positions(tensors, config_json, config), len(self.tokens)
        trained, side = (math.isqrt(count) for count in (len(table) - placed, config.max_tokens - config.prefix_rows))
        if trained == side:
            return table
        # The same call as in transformers.
        grid = table[placed:].T.view(1, -1, trained, trained)
        grid = F.interpolate(grid, (side, side), mode="bicubic", align_corners=False, antialias=self.antialias)
        return torch.cat((table[:placed], grid[0].flatten(1).T))


@dataclass(frozen=True)
class RotaryImageInput(ImageInput):
    """The input of DINOv3: tokens without positions, and patches that attention rotates by their place in the grid."""

    @override
    def take_positions(self, tensors: dict[str, Tensor], config_json: CheckpointJson, config: EncoderConfig) -> Tensor:
        return torch.zeros(len(self.tokens) + self.patches(config_json), config.d_model)

    @override
    def fold_tensors(self, tensors: dict[str, Tensor], config_json: CheckpointJson, config: EncoderConfig) -> None:
        """Also arrange the pairs of queries and keys as neighbours; DINOv3 pairs the two halves of a head."""
        super().fold_tensors(tensors, config_json, config)
        for name, tensor in tensors.items():
            # `take_tensor` refuses other shapes later.
            if (".q_proj." in name or ".k_proj." in name) and tensor.shape[:1] == (config.d_model,):
                tensors[name] = pair_neighbours(tensor, config.heads)


@dataclass(frozen=True)
class SiglipImageInput(ImageInput):
    """The input of SigLIP, whose checkpoints may also pool by attention."""

    @override
    def fold_tensors(self, tensors: dict[str, Tensor], config_json: CheckpointJson, config: EncoderConfig) -> None:
        """Also fold the learned query of the pooling into its keys, see `AttentionPooling`."""
        super().fold_tensors(tensors, config_json, config)
        if config.pooling is not Pooling.ATTENTION:
            return
        if not config_json.flag("vision_use_head", default=True):
            raise config_json.error(
                "vision_use_head", "the checkpoint has no attention pooling: choose another pooling"
            )
        width, heads = config.d_model, config.heads
        weight = take_tensor(tensors, "head.attention.in_proj_weight", (3 * width, width)).double()
        bias = take_tensor(tensors, "head.attention.in_proj_bias", (3 * width,)).double()
        probe = take_tensor(tensors, "head.probe", (1, 1, width)).double()[0, 0]
        query = (weight[:width] @ probe + bias[:width]).view(heads, 1, -1) / math.sqrt(width // heads)
        # The bias of the keys adds the same number to all scores of a head.
        scores = query @ weight[width : 2 * width].view(heads, -1, width)
        tensors["head.scores.weight"] = scores[:, 0].float()
        tensors |= {"head.value.weight": weight[2 * width :].float(), "head.value.bias": bias[2 * width :].float()}


def _with_silu(config_json: CheckpointJson) -> CheckpointJson:
    """Return a configuration of DINOv2 with the activation of its gated feed-forward blocks."""
    if not config_json.is_true("use_swiglu_ffn"):
        return config_json
    return replace(config_json, values={**config_json.values, "hidden_act": "silu"})


VIT = Family(
    input=ImageInput(),
    tensor_prefix="vit.",
    size_fields=USUAL_SIZES,
    optional_size_fields={"head_dim": "head_dim"},
    activation_field="hidden_act",
    module_names={
        "embedding.tokens": "embeddings.patch_embeddings.projection",
        "embedding.positions.table": "embeddings.position_embeddings",
        "norm": "layernorm",
    },
    layer_prefix="encoder.layer",
    layer_module_names={
        "attention.query": "attention.attention.query",
        "attention.key": "attention.attention.key",
        "attention.value": "attention.attention.value",
        "attention.output": "attention.output.dense",
        "attention_norm": "layernorm_before",
        "feed_forward.up": "intermediate.dense",
        "feed_forward.down": "output.dense",
        "feed_forward_norm": "layernorm_after",
    },
    ignored_prefixes=("embeddings.mask_token", "pooler.", "decoder."),
    boolean_fields={"query_bias": "qkv_bias", "key_bias": "qkv_bias", "value_bias": "qkv_bias"},
    sequence_head=SequenceHead("classifier"),
    fixed_fields={
        "norm": Norm.PRE,
        "final_norm": True,
        "embedding_norm": False,
        "fixed_length": True,
    },
    default_pooling=Pooling.CLS,
)
DEIT = replace(
    VIT,
    input=ImageInput(tokens=("embeddings.cls_token", "embeddings.distillation_token")),
    tensor_prefix="deit.",
)
DINOV2 = replace(
    VIT,
    input=DinoInput(),
    tensor_prefix="dinov2.",
    size_fields={name: field for name, field in VIT.size_fields.items() if name != "d_ff"},
    layer_module_names={
        **VIT.layer_module_names,
        "attention_norm": "norm1",
        "feed_forward.gate": "mlp.gate",
        "feed_forward.up": "mlp.fc1",
        "feed_forward.down": "mlp.fc2",
        "feed_forward_norm": "norm2",
    },
    layer_scales={"attention.output": "layer_scale1.lambda1", "feed_forward.down": "layer_scale2.lambda1"},
    boolean_fields={**VIT.boolean_fields, "gated": "use_swiglu_ffn"},
    translate=_with_silu,
    sequence_head=SequenceHead("classifier", poolings=(Pooling.CLS, Pooling.PATCH_MEAN)),
)
DINOV2_WITH_REGISTERS = replace(
    DINOV2,
    input=DinoInput(registers="embeddings.register_tokens", antialias=True),
    tensor_prefix="dinov2_with_registers.",
)
DINOV3 = replace(
    DINOV2,
    input=RotaryImageInput(projection="embeddings.patch_embeddings", registers="embeddings.register_tokens"),
    tensor_prefix="model.",
    size_fields=VIT.size_fields,
    optional_size_fields={},
    module_names={
        "embedding.tokens": "embeddings.patch_embeddings",
        "embedding.positions.table": "embeddings.position_embeddings",
        "norm": "norm",
    },
    layer_prefix="layer",
    layer_module_names={
        "attention.query": "attention.q_proj",
        "attention.key": "attention.k_proj",
        "attention.value": "attention.v_proj",
        "attention.output": "attention.o_proj",
        "attention_norm": "norm1",
        "feed_forward.gate": "mlp.gate_proj",
        "feed_forward.up": "mlp.up_proj",
        "feed_forward.down": "mlp.down_proj",
        "feed_forward_norm": "norm2",
    },
    boolean_fields={
        "query_bias": "query_bias",
        "key_bias": "key_bias",
        "value_bias": "value_bias",
        "output_bias": "proj_bias",
        "gated": "use_gated_mlp",
        "up_bias": "mlp_bias",
        "down_bias": "mlp_bias",
    },
    fixed_fields={**VIT.fixed_fields, "positions": Positions.ROTARY_GRID},
    required_fields={"rope_theta": 100.0},
    translate=VIT.translate,
    sequence_head=None,
)
_SIGLIP_INPUT = SiglipImageInput(
    projection="embeddings.patch_embedding",
    positions="embeddings.position_embedding.weight",
    tokens=(),
)
SIGLIP_VISION = Family(
    input=_SIGLIP_INPUT,
    tensor_prefix="vision_model.",
    size_fields=VIT.size_fields,
    has_default_sizes=True,
    activation_field="hidden_act",
    module_names={
        "embedding.tokens": "embeddings.patch_embedding",
        "embedding.positions.table": "embeddings.position_embedding",
        "norm": "post_layernorm",
        "attention_pooling.scores": "head.scores",
        "attention_pooling.value": "head.value",
        "attention_pooling.output": "head.attention.out_proj",
        "attention_pooling.norm": "head.layernorm",
        "attention_pooling.feed_forward.up": "head.mlp.fc1",
        "attention_pooling.feed_forward.down": "head.mlp.fc2",
    },
    layer_prefix="encoder.layers",
    layer_module_names={
        "attention.query": "self_attn.q_proj",
        "attention.key": "self_attn.k_proj",
        "attention.value": "self_attn.v_proj",
        "attention.output": "self_attn.out_proj",
        "attention_norm": "layer_norm1",
        "feed_forward.up": "mlp.fc1",
        "feed_forward.down": "mlp.fc2",
        "feed_forward_norm": "layer_norm2",
    },
    ignored_prefixes=("embeddings.position_ids", "head."),
    fixed_fields=VIT.fixed_fields,
    default_pooling=Pooling.ATTENTION,
    sequence_head=SequenceHead("classifier", poolings=(Pooling.MEAN,)),
)
SIGLIP = replace(
    SIGLIP_VISION,
    config_fields=("vision_config",),
    ignored_prefixes=(*SIGLIP_VISION.ignored_prefixes, "text_model.", "logit_scale", "logit_bias"),
)


def norm_of_vectors(encoder_json: CheckpointJson) -> PooledModule:
    """Return a norm of pooled vectors with the epsilon of the encoder's norms."""
    eps = encoder_json.values["layer_norm_eps"]
    if not isinstance(eps, float) or not 0 < eps < 1:
        raise encoder_json.error("layer_norm_eps", "it must be a number between 0 and 1")
    return PooledModule(kind=ModuleKind.LAYER_NORM, eps=eps)


def _clip_modules(config_json: CheckpointJson, encoder_json: CheckpointJson) -> tuple[PooledModule, ...]:
    """Return CLIP's norm of the class token's row, and the projection if the checkpoint has it."""
    norm = norm_of_vectors(encoder_json)
    whole = config_json.values["model_type"] == "clip"
    if not whole and not any(name.endswith("WithProjection") for name in config_json.strings("architectures")):
        return (norm,)
    sizes = replace(config_json, values={"projection_dim": 512, **config_json.values})
    return norm, PooledModule(kind=ModuleKind.DENSE, width=sizes.size("projection_dim"), bias=False)


CLIP_VISION = replace(
    SIGLIP_VISION,
    input=ImageInput(
        projection=_SIGLIP_INPUT.projection,
        positions=_SIGLIP_INPUT.positions,
        tokens=("embeddings.class_embedding",),
        projection_bias=False,
    ),
    module_names={
        "embedding.tokens": "embeddings.patch_embedding",
        "embedding.positions.table": "embeddings.position_embedding",
        "embedding.norm": "pre_layrnorm",
        "after_pooling.0.norm": "post_layernorm",
        "after_pooling.1.linear": "visual_projection",
    },
    ignored_prefixes=("embeddings.position_ids", "post_layernorm.", "visual_projection."),
    fixed_fields={"norm": Norm.PRE, "fixed_length": True},
    default_pooling=Pooling.CLS,
    own_modules=_clip_modules,
    sequence_head=SequenceHead("classifier", poolings=(Pooling.PATCH_MEAN,)),
)
CLIP = replace(
    CLIP_VISION,
    # Older releases of transformers wrote both, and the first overrides the second.
    config_fields=("vision_config_dict", "vision_config"),
    ignored_prefixes=(*CLIP_VISION.ignored_prefixes, "text_model.", "text_projection.", "logit_scale"),
)
