"""Loads: the sequences that the benchmarks encode, and the calls that send them."""
