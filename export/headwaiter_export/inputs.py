"""What the checkpoints of a family take: token ids, or patches of an image."""

from dataclasses import dataclass

from torch import Tensor

from headwaiter_export.checkpoint_json import Settings
from headwaiter_export.config import EncoderConfig
from headwaiter_export.weights import take

_POSITIONS = "embeddings.position_embeddings"
_TYPES = "embeddings.token_type_embeddings.weight"
_PROJECTION = "embeddings.patch_embeddings.projection"


@dataclass(frozen=True)
class Tokens:
    """Token ids, all of token type 0.

    Attributes:
        positions_follow_padding: the first position is one above the padding token's id, as fairseq has it.
    """

    positions_follow_padding: bool = False

    def sizes(self, settings: Settings) -> dict[str, int]:
        """Read the sizes of the input, by our names."""
        return {
            "vocabulary_size": settings.count("vocab_size"),
            "max_tokens": settings.count("max_position_embeddings") - self._reserved(settings),
        }

    def fold(self, tensors: dict[str, Tensor], settings: Settings, config: EncoderConfig) -> None:
        """Leave one table of positions: without reserved rows, and with the vector of token type 0 added."""
        name, reserved = f"{_POSITIONS}.weight", self._reserved(settings)
        table = take(tensors, name, (reserved + config.max_tokens, config.d_model))[reserved:]
        if _TYPES in tensors:
            types = tensors[_TYPES]
            rows = max(1, len(types)) if types.ndim else 1
            table = table + take(tensors, _TYPES, (rows, config.d_model))[0]
        tensors[name] = table

    def _reserved(self, settings: Settings) -> int:
        if not self.positions_follow_padding:
            return 0
        return 1 + (settings.count("pad_token_id", least=0) if "pad_token_id" in settings.values else 1)


@dataclass(frozen=True)
class Patches:
    """Square patches of an image, line by line, behind a row of zeros for the class token.

    Each patch [C, P, P] of an image [C, H, W] is flattened, channels first, so that the convolution over patches is a
    linear layer over rows [1 + patches, C·P·P] (https://arxiv.org/abs/2010.11929, section 3.1). With numpy:

        C, H, W = image.shape
        patches = image.reshape(C, H // P, P, W // P, P).transpose(1, 3, 0, 2, 4).reshape(-1, C * P * P)
        features = np.concatenate([np.zeros((1, C * P * P), np.float32), patches])

    Pixels come as the checkpoint's image processor leaves them. A row's number is its position, whatever the image's
    size: fewer patches take the first positions.
    """

    def sizes(self, settings: Settings) -> dict[str, int]:
        """Read the sizes of the input, by our names."""
        patch_size = settings.count("patch_size")
        return {
            "feature_width": settings.count("num_channels") * patch_size**2,
            "max_tokens": 1 + (settings.count("image_size") // patch_size) ** 2,
        }

    def fold(self, tensors: dict[str, Tensor], settings: Settings, config: EncoderConfig) -> None:
        """Leave a linear layer over rows, and one table of positions, with the class token added to its first row."""
        width, patch_size = config.d_model, settings.count("patch_size")
        kernel_shape = (width, settings.count("num_channels"), patch_size, patch_size)
        kernel = take(tensors, f"{_PROJECTION}.weight", kernel_shape)
        bias = take(tensors, f"{_PROJECTION}.bias", (width,))
        table = take(tensors, _POSITIONS, (1, config.max_tokens, width))[0]
        # The linear layer gives its bias to the row of zeros too.
        table[0] += take(tensors, "embeddings.cls_token", (1, 1, width))[0, 0] - bias
        tensors |= {f"{_PROJECTION}.weight": kernel.flatten(1), f"{_PROJECTION}.bias": bias}
        tensors[f"{_POSITIONS}.weight"] = table
