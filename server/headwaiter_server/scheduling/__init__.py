"""Decide which sequences run together, when, and on which device. Imports neither gRPC nor ONNX Runtime."""
