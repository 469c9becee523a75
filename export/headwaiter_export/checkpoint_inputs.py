"""Inputs of checkpoints: token ids, or patches of an image."""

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
    """Token ids of token type 0.

    Attributes:
        positions_follow_padding: whether the first position is one above the padding token's id, as in fairseq.
    """

    positions_follow_padding: bool = False

    def sizes(self, config_json: CheckpointJson) -> dict[str, int]:
        """Read the sizes of the input, named as in EncoderConfig."""
        return {
            "vocabulary_size": config_json.size("vocab_size"),
            "max_tokens": config_json.size("max_position_embeddings") - self._reserved(config_json),
        }

    def fold_tensors(self, tensors: dict[str, Tensor], config_json: CheckpointJson, config: EncoderConfig) -> None:
        """Replace the position table by one without reserved rows, with the vector of token type 0 added."""
        name, reserved = f"{_POSITIONS}.weight", self._reserved(config_json)
        table = take_tensor(tensors, name, (reserved + config.max_tokens, config.d_model))[reserved:]
        if _TYPES in tensors:
            types = tensors[_TYPES]
            rows = max(1, len(types)) if types.ndim else 1
            table = table + take_tensor(tensors, _TYPES, (rows, config.d_model))[0]
        tensors[name] = table

    def _reserved(self, config_json: CheckpointJson) -> int:
        if not self.positions_follow_padding:
            return 0
        return 1 + (config_json.size("pad_token_id", least=0) if "pad_token_id" in config_json.values else 1)


@dataclass(frozen=True)
class PatchInput:
    """Square patches of an image in row-major order, after a row of zeros for the class token.

    Each patch [C, P, P] of an image [C, H, W] is flattened, channels first. The convolution over patches is then a
    linear layer over rows [1 + patches, C·P·P] (https://arxiv.org/abs/2010.11929, section 3.1). In numpy:

        C, H, W = image.shape
        patches = image.reshape(C, H // P, P, W // P, P).transpose(1, 3, 0, 2, 4).reshape(-1, C * P * P)
        features = np.concatenate([np.zeros((1, C * P * P), np.float32), patches])

    Pixels have the values that the checkpoint's image processor returns. A row's index is its position in images of
    every size: an image of fewer patches uses the first positions.
    """

    def sizes(self, config_json: CheckpointJson) -> dict[str, int]:
        """Read the sizes of the input, named as in EncoderConfig."""
        patch_size = config_json.size("patch_size")
        return {
            "feature_width": config_json.size("num_channels") * patch_size**2,
            "max_tokens": 1 + (config_json.size("image_size") // patch_size) ** 2,
        }

    def fold_tensors(self, tensors: dict[str, Tensor], config_json: CheckpointJson, config: EncoderConfig) -> None:
        """Replace the convolution by a linear layer over rows, and add the class token to the first position."""
        width, patch_size = config.d_model, config_json.size("patch_size")
        kernel_shape = (width, config_json.size("num_channels"), patch_size, patch_size)
        kernel = take_tensor(tensors, f"{_PROJECTION}.weight", kernel_shape)
        bias = take_tensor(tensors, f"{_PROJECTION}.bias", (width,))
        table = take_tensor(tensors, _POSITIONS, (1, config.max_tokens, width))[0]
        # Subtract the bias, which the linear layer adds to the row of zeros too.
        table[0] += take_tensor(tensors, "embeddings.cls_token", (1, 1, width))[0, 0] - bias
        tensors |= {f"{_PROJECTION}.weight": kernel.flatten(1), f"{_PROJECTION}.bias": bias}
        tensors[f"{_POSITIONS}.weight"] = table
