"""Checkpoints as bundles that take little time to write."""

from pathlib import Path
from typing import Any

from headwaiter_export.bundle.export import export_bundle
from headwaiter_export.bundle.graphs import ATTENTION_WEIGHTS_GRAPH, GRAPHS
from headwaiter_export.checkpoints.reader import read_checkpoint


def export_checkpoint(checkpoint: Path, bundle: Path, name: str, *, attends: bool = False, **choices: Any) -> None:
    """Export a checkpoint with the graph for CPUs, and the graph of attention weights if the model attends.

    Other arguments are those of `read_checkpoint`.
    """
    loaded = read_checkpoint(checkpoint, **choices)
    plans = (GRAPHS[0], ATTENTION_WEIGHTS_GRAPH) if attends else GRAPHS[:1]
    export_bundle(loaded.encoder, loaded.text, bundle, name, plans=plans, image=loaded.image)
