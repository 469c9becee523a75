"""Exports a model and serves it, with one command."""
