"""Decide which sequences run together, when, and on which device. No module imports gRPC or ONNX Runtime directly."""
