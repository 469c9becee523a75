"""The report of the benchmarks: tables, charts and the page docs/benchmarks/README.md."""
