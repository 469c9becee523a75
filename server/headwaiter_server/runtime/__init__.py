"""Read bundles and run their graphs, with numpy and ONNX Runtime. This layer knows neither requests nor gRPC."""
