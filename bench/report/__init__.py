"""The report of the benchmarks."""
