"""Serve a bundle over gRPC."""

import os

# ONNX Runtime sends telemetry unless this variable is set before the first import of onnxruntime.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
