"""Servers that benchmarks compare with, each in a process of its own."""
