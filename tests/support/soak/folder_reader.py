"""Read a folder per line of standard input, as a server reads bundles or as the export reads checkpoints.

Run it with `python -m tests.support.soak.folder_reader bundle|checkpoint`. It answers each line with one of JSON: the
outcome, the message of a refusal, and the peak of the memory so far.
"""

import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

from headwaiter_server.inputs.tokenizer import BundleTokenizer
from headwaiter_server.runtime.attention_weights import AttentionWeightsGraph
from headwaiter_server.runtime.errors import ModelRefused
from headwaiter_server.runtime.model import open_model


def load_bundle(folder: Path) -> tuple[str, str]:
    """Load a bundle without serving it; return the outcome, and the message of a refusal."""
    try:
        model = open_model(folder, "cpu", "auto", 1)
        if model.bundle.manifest.max_text_tokens:
            BundleTokenizer.open_in(model.bundle)
    except ModelRefused as refused:
        return type(refused).__name__, str(refused)
    if model.bundle.manifest.HasField("attend"):
        try:
            AttentionWeightsGraph.open_in(model.bundle)
        except Exception:  # noqa: BLE001 - the queue of attention weights answers any error with InferenceFailed
            return "served without attention weights", ""
    return "served", ""


def export_checkpoint(folder: Path) -> tuple[str, str]:
    """Export a checkpoint; return the outcome, and the message of a refusal."""
    from headwaiter_export.cli import main

    output = Path(tempfile.mkdtemp(dir=folder.parent))
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()) as errors:
        status = main(["checkpoint", str(folder), "-o", str(output / "bundle"), "--name", "fuzzed"])
    shutil.rmtree(output)
    return ("refused", errors.getvalue().removesuffix("\n")) if status else ("exported", "")


READERS: dict[str, Callable[[Path], tuple[str, str]]] = {"bundle": load_bundle, "checkpoint": export_checkpoint}


def _peak_mib() -> float:
    """Return the peak of this process's memory; getrusage would count its parent's too."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def main() -> None:
    """Answer each line."""
    read, answers = READERS[sys.argv[1]], sys.stdout
    for line in sys.stdin:
        try:
            outcome, message = read(Path(line.rstrip("\n")))
        except BaseException as error:  # noqa: BLE001 - whatever is raised is the answer
            outcome, message = f"raised {type(error).__name__}", str(error)
        print(json.dumps({"outcome": outcome, "message": message, "peak_mib": _peak_mib()}), file=answers, flush=True)


if __name__ == "__main__":
    main()
