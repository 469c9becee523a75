"""Export PyTorch encoders as bundles."""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headwaiter_export.bundle.own_module import export_module

__all__ = ["export_module"]

# ONNX Runtime reads this variable when it is imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


def __getattr__(name: str) -> object:
    """Import `export_module` when it is used: the command should not wait for torch."""
    if name != "export_module":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from headwaiter_export.bundle import own_module

    return own_module.export_module
