"""Exports every preset and all-MiniLM-L6-v2, and writes each graph's difference from PyTorch into the page of numerics.

The figures come from each bundle's parity.json; GetModel reports the same figures. A graph that cannot run on this
machine keeps its row of the table.
"""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from headwaiter_export.bundle.export import export_bundle
from headwaiter_export.bundle.graphs import GRAPHS
from headwaiter_export.checkpoints.reader import read_checkpoint
from headwaiter_export.checkpoints.weights import random_encoder
from headwaiter_export.config.presets import PRESETS
from headwaiter_proto.encoder_pb2 import GraphParity
from headwaiter_server.runtime.bundle import Bundle
from headwaiter_server.runtime.numeric_tolerances import Difference
from testbed.minilm import ROOT, checkpoint

DOCUMENT = ROOT / "docs" / "explanation" / "numerics.md"
_BEGIN, _END = "<!-- measured -->\n", "<!-- /measured -->\n"
_NOT_MEASURED = " not yet measured | | | | | | |"


def main() -> None:
    """Export all models, and update the table."""
    before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(_BEGIN)
    table, _, after = rest.partition(_END)
    header, line, *rows = table.splitlines()
    # The first three cells of a row identify the graph; the others are its figures.
    cells = {row[: _end_of_key(row)]: row[_end_of_key(row) :] for row in rows}
    with TemporaryDirectory() as folder:
        for name, bundle in _bundles(Path(folder)):
            measured = {parity.graph: parity for parity in bundle.parity().graphs}
            for plan in GRAPHS:
                key = f"| {name} | {plan.file.removesuffix('.onnx')} | {plan.provider} |"
                if plan.file in measured:
                    cells[key] = figures(measured[plan.file])
                print(key + cells.setdefault(key, _NOT_MEASURED), flush=True)
    updated = "\n".join([header, line, *(key + row for key, row in sorted(cells.items()))])
    DOCUMENT.write_text(f"{before}{_BEGIN}{updated}\n{_END}{after}", encoding="utf-8")


def _end_of_key(row: str) -> int:
    return len("|".join(row.split("|")[:4])) + 1


def _bundles(folder: Path) -> Iterator[tuple[str, Bundle]]:
    model = read_checkpoint(checkpoint())
    export_bundle(model.encoder, model.text, folder / "model", "all-MiniLM-L6-v2")
    yield "all-MiniLM-L6-v2", Bundle.open(folder / "model")
    for name, preset in PRESETS.items():
        # With pooling, so that every column has a figure.
        export_bundle(random_encoder(preset({"pooling": "mean"}), seed=0), None, folder / name, name)
        yield f"{name}, random weights", Bundle.open(folder / name)


def figures(parity: GraphParity | Difference) -> str:
    """Return the cells of a graph's figures."""
    neighbour = ""
    if isinstance(parity, GraphParity) and parity.HasField("same_nearest_neighbour"):
        neighbour = f"{parity.same_nearest_neighbour:.1%}"
    return (
        f" {parity.pooled_max_abs:.1e} | {parity.pooled_max_relative:.1e} | {parity.hidden_max_abs:.1e} "
        f"| {parity.hidden_max_relative:.1e} | {parity.min_cosine:.7f} | {parity.mean_cosine:.7f} | {neighbour} |"
    )


if __name__ == "__main__":
    main()
