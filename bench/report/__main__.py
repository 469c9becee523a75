"""Draws the charts of docs/benchmarks and of the README from a JSON file of figures, as `make bench` writes it."""

import sys
from pathlib import Path

from bench.report.charts import draw
from testbed.minilm import ROOT

if __name__ == "__main__":
    draw(Path(sys.argv[1]) if sys.argv[1:] else ROOT / "docs" / "benchmarks" / "figures.json")
