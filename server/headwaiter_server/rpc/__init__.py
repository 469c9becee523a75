"""The gRPC API: headwaiter.v1."""
