"""Draws the charts of docs/benchmarks.md and of the README from a JSON file of figures, as `make bench` writes it."""

import argparse
import json
from pathlib import Path

from bench.report.charts import draw
from testbed.minilm import ROOT


def main() -> None:
    """Draw the charts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("figures", type=Path, nargs="?", default=ROOT / "docs" / "benchmarks.json")
    parser.add_argument("--folder", type=Path, default=ROOT / "docs", help="folder of the charts (default: docs)")
    arguments = parser.parse_args()
    draw(json.loads(arguments.figures.read_text(encoding="utf-8")), arguments.folder)


if __name__ == "__main__":
    main()
