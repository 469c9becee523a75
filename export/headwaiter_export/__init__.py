"""Exports a PyTorch encoder as a bundle."""

import os

# ONNX Runtime reads this variable when it is first imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
