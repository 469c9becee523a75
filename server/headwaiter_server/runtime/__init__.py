"""Read bundles and run their graphs, with numpy and ONNX Runtime. This layer has no notion of requests or gRPC."""
