"""The report of the benchmarks: figures, targets, tables, charts and the page docs/benchmarks/README.md."""
