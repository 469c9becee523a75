"""Writes docs/benchmarks/README.md and its chart from docs/benchmarks/figures.json, as `make bench` does at its end."""

from bench.report import page

if __name__ == "__main__":
    page.write()
