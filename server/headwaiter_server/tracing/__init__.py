"""Traces for OpenTelemetry: `start` decides whether there are any, and only then imports `spans`."""
