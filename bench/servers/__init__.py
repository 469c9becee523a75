"""Servers to compare Headwaiter with, each run as a process of its own."""
