"""Benchmarks, run by `make bench`; no test asserts a timing."""
