"""Serve a bundle over gRPC."""

import os

# ONNX Runtime sends telemetry unless this variable is set before it is first imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
