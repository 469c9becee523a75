"""Traces for OpenTelemetry: `start` imports `spans`, and with it OpenTelemetry, only with `--traces otlp`."""
