"""The path of a request, the same for gRPC and HTTP: limits, inputs, outcome, reply."""
