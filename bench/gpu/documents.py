"""Fills the figures of a GPU check into the lines of the documentation's tables."""

import re
from collections.abc import Sequence
from pathlib import Path

from bench.findings import Finding, format_number
from bench.gpu.decisions import CALLS, MEMORY, MODERN_BERT, P50, SERVED
from testbed.minilm import ROOT

# The template of docs/benchmarks/README.md, which `python -m bench.report` writes again, and a page.
BENCHMARKS, NUMERICS = ROOT / "bench" / "report" / "page.md", ROOT / "docs" / "explanation" / "numerics.md"
# The start of each line, and one pattern for each of its figures: the figure is the worst finding that matches.
_FIGURES = {
    "| tokens/s in process: Headwaiter / PyTorch's scaled": (r"throughput in process / .* in arrival order",),
    "| tokens/s in process: Headwaiter / PyTorch's variable": (r"throughput in process / .* flash attention",),
    "| tokens/s in process, ModernBERT-base's": (MODERN_BERT,),
    "| speed of the model in batches": (r".*: share of the matrix rate",),
    "| tokens/s: served / in process": (SERVED,),
    "| one sequence of 32 tokens": (P50, P50.replace("p50", "p99")),
    "| calls/s of one text each": (CALLS,),
    "| GPU memory": (MEMORY,),
    "| fp32 | pooled vectors, largest": (r".*, fp32: pooled, largest difference",),
    "| fp32 | hidden rows, largest": (r".*, fp32: hidden, largest difference",),
    "| fp32 | pooled vectors and hidden rows, smallest": (r".*, fp32: (pooled|hidden), smallest cosine",),
    "| fp16 | pooled vectors, smallest": (r".*, fp16: pooled, smallest cosine",),
    "| fp16 | hidden rows, relative": (r".*, fp16: hidden, relative error",),
    "| fp32 and fp16 | values": (r".*: values changed by other sequences",),
}


def table_lines(document: Path) -> list[str]:
    """Return the lines of a document's tables."""
    return [line for line in document.read_text(encoding="utf-8").splitlines() if line.startswith("|")]


def document_lines(findings: Sequence[Finding], gpu: str) -> str:
    """Return the lines to paste into each document; a line without all its figures is left out."""
    # If the name of a finding is the first cells of a line, the finding's text is the other cells.
    lines = {each.name: each.name + str(each.measured) for each in findings if each.name.startswith("|")}
    printed = []
    for document in (BENCHMARKS, NUMERICS):
        printed.append(f"\nLines for {document.relative_to(ROOT)}, measured on {gpu}:\n")
        for line in table_lines(document):
            printed += [filled for name, filled in lines.items() if line.startswith(name)]
            for start, patterns in _FIGURES.items():
                figures = [_worst(pattern, findings) for pattern in patterns]
                if line.startswith(start) and all(figures):
                    printed.append(f"{line.rsplit('|', 2)[0]}| {', '.join(figures)} |")
    return "\n".join(printed)


def _worst(pattern: str, findings: Sequence[Finding]) -> str:
    """Return the worst figure whose name matches, preferring figures with a bound; empty if no name matches."""
    named = [each for each in findings if re.fullmatch(pattern, each.name) and each.measured is not None]
    bounded = [each for each in named if each.sign] or named
    pick = min if any(each.sign == "≥" for each in bounded) else max
    return format_number(pick(each.number for each in bounded)) if bounded else ""
