"""Reasons why a model cannot be served. Each message is one sentence for the operator."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

# A panic of the library `tokenizers` prints its message to standard error even if it is caught; if the user has set
# this variable, it also prints dozens of lines of a backtrace. The library reads the variable at the first panic.
os.environ["RUST_BACKTRACE"] = "0"


class ModelRefused(Exception):
    """The model must not be served."""


class BundleRefused(ModelRefused):
    """The bundle is missing, damaged, or of an unknown schema version."""


class BundleChanged(BundleRefused):
    """A file of the bundle is not the file that was checked when the bundle was opened."""


class GraphMissing(BundleRefused):
    """The bundle has no graph for the requested provider and precision."""


class ProviderUnavailable(ModelRefused):
    """The requested execution provider does not work on this host."""


class NoDriver(ProviderUnavailable):
    """The host has no NVIDIA driver, so probably no GPU."""


class ToleranceExceeded(ModelRefused):
    """The graph's outputs differ from PyTorch's by more than the tolerance of their precision."""


class NotEnoughMemory(ModelRefused):
    """The model does not fit in memory."""


class NoRoom(NotEnoughMemory):
    """The model does not fit beside the models that stay.

    Attributes:
        limit_bytes: what the model may have.
        needed_bytes: what the model needs.
    """

    def __init__(self, limit_bytes: int, needed_bytes: int) -> None:
        super().__init__(
            f"it needs about {needed_bytes:,} bytes, and --max-model-bytes leaves {limit_bytes:,} bytes beside the "
            "models that are always loaded: raise the limit, or let another model be loaded on demand"
        )
        self.limit_bytes, self.needed_bytes = limit_bytes, needed_bytes


class LongestSequenceRefused(ModelRefused):
    """The longest sequence of the model is too long for the device."""


class DeviceLost(ModelRefused):
    """A device died or hangs; only a new process can use it again."""


def one_line(error: object) -> str:
    """Return an error's message with each run of white space, line breaks included, replaced by one space."""
    return " ".join(str(error).split())


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Raise a RuntimeError instead of a panic of the library `tokenizers`, which is no Exception."""
    try:
        yield
    except BaseException as error:
        # The class cannot be imported.
        if type(error).__name__ != "PanicException":
            raise
        raise RuntimeError(one_line(error)) from None
