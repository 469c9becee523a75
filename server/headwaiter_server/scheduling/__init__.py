"""Decides what runs together and when; knows nothing of gRPC."""
