"""The Open Inference Protocol: what its messages mean, the same for gRPC and HTTP."""
