"""The Open Inference Protocol (KServe v2) over gRPC: its messages in, messages of headwaiter.v1 through the server."""
