"""The inputs of the checkpoint families: token ids, or patches of an image.

Headwaiter's encoders have one table of positions and no token types or class token. Checkpoints have more tensors at
their input; `fold_tensors` adds these into the tensors of an encoder.
"""

from dataclasses import dataclass

from torch import Tensor

from headwaiter_export.checkpoint_json import CheckpointJson
from headwaiter_export.config import EncoderConfig
from headwaiter_export.weights import take_tensor

_POSITIONS = "embeddings.position_embeddings"
_TYPES = "embeddings.token_type_embeddings.weight"
_PROJECTION = "embeddings.patch_embeddings.projection"


@dataclass(frozen=True)
class TokenInput:
    """Token ids, all of token type 0.

    Attributes:
        positions_follow_padding: whether the first position is the padding token's id + 1, as in fairseq.
    """

    positions_follow_padding: bool = False

    def sizes(self, config_json: CheckpointJson) -> dict[str, int]:
        """Read the sizes of the input, named as in EncoderConfig."""
        return {
            "vocabulary_size": config_json.size("vocab_size"),
            "max_tokens": config_json.size("max_position_embeddings") - self._reserved_positions(config_json),
        }

    def fold_tensors(self, tensors: dict[str, Tensor], config_json: CheckpointJson, config: EncoderConfig) -> None:
        """Remove the reserved rows of the position table, and add the vector of token type 0 to the others."""
        name, reserved = f"{_POSITIONS}.weight", self._reserved_positions(config_json)
        table = take_tensor(tensors, name, (reserved + config.max_tokens, config.embedding_width))[reserved:]
        if _TYPES in tensors:
            types = tensors[_TYPES]
            rows = max(1, len(types)) if types.ndim else 1
            table = table + take_tensor(tensors, _TYPES, (rows, config.embedding_width))[0]
        tensors[name] = table

    def _reserved_positions(self, config_json: CheckpointJson) -> int:
        if not self.positions_follow_padding:
            return 0
        return 1 + (config_json.size("pad_token_id", least=0) if "pad_token_id" in config_json.values else 1)


@dataclass(frozen=True)
class PatchInput:
    """A row of zeros for the class token, then the square patches of an image in row-major order.

    Each patch [C, P, P] of an image [C, H, W] is flattened, channels first. The convolution over patches thus becomes a
    linear layer on rows [1 + patches, C·P·P] (https://arxiv.org/abs/2010.11929, section 3.1), which
    `headwaiter_client.patches` makes. The positions belong to images of the model's own size, so all images have it.
    """

    def sizes(self, config_json: CheckpointJson) -> dict[str, int]:
        """Read the sizes of the input, named as in EncoderConfig."""
        patch_size = config_json.size("patch_size")
        return {
            "feature_width": config_json.size("num_channels") * patch_size**2,
            "max_tokens": 1 + (config_json.size("image_size") // patch_size) ** 2,
        }

    def fold_tensors(self, tensors: dict[str, Tensor], config_json: CheckpointJson, config: EncoderConfig) -> None:
        """Replace the convolution by a linear layer on rows, and add the class token to the first position."""
        width, patch_size = config.d_model, config_json.size("patch_size")
        kernel_shape = (width, config_json.size("num_channels"), patch_size, patch_size)
        kernel = take_tensor(tensors, f"{_PROJECTION}.weight", kernel_shape)
        bias = take_tensor(tensors, f"{_PROJECTION}.bias", (width,))
        table = take_tensor(tensors, _POSITIONS, (1, config.max_tokens, width))[0]
        # The linear layer adds its bias to the row of zeros too, so the bias is subtracted here.
        table[0] += take_tensor(tensors, "embeddings.cls_token", (1, 1, width))[0, 0] - bias
        tensors |= {f"{_PROJECTION}.weight": kernel.flatten(1), f"{_PROJECTION}.bias": bias}
        tensors[f"{_POSITIONS}.weight"] = table
