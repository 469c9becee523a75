"""Export PyTorch encoders as bundles."""

import os

# ONNX Runtime reads this variable when it is imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
