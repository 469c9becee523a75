"""The padded layout of modules of the caller, which arrange their rows themselves."""

from torch import Tensor
from typing_extensions import override

from headwaiter_export.graphs.portable import Portable


class Padded(Portable):
    """Padded sequences with a mask; token ids stay [B, N], and features [B, N, feature_width]."""

    @override
    def to_rows(self, tokens: Tensor) -> Tensor:
        return tokens
