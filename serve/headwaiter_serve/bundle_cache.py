"""The folder of exported bundles. Its names are digests of what decides the content of a bundle."""

import fcntl
import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headwaiter_export import checkpoints
from headwaiter_export.checkpoints.hub import resolve
from headwaiter_export.checkpoints.needed_files import needed_files
from headwaiter_export.checkpoints.onnx_paths import files_of, find_onnx, is_onnx_model, settings_folder, usual_name
from headwaiter_proto.model_source import HubName
from headwaiter_server.settings.flags import Settings


@contextmanager
def cached_bundle(model: str, settings: Settings) -> Iterator[tuple[Path, list[str]]]:
    """Yield the folder of a model's bundle, and the arguments of headwaiter-export that write it if it is missing.

    During the block, no other start exports the same model. A model that changes gets another folder.

    Raises:
        CheckpointError: the model cannot be found, or a file of it names one outside its folder.
    """
    (command, source) = _read(model)
    # An ONNX file has one graph.
    flags = [] if command[0] == "onnx" else _graph_flags(settings)
    bundle = _folder() / hashlib.sha256("\n".join([*source, *flags, _code()]).encode()).hexdigest()[:32]
    bundle.parent.mkdir(parents=True, exist_ok=True)
    with bundle.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"headwaiter: another start exports {model}: waiting for its bundle", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield bundle, [*command, "-o", str(bundle), *flags]


def _folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headwaiter" / "bundles"


def _read(model: str) -> tuple[list[str], list[str]]:
    """Return the command of headwaiter-export that reads a model, and what differs if the model differs."""
    if name := HubName.parse(model):
        commit = resolve(name)
        return ["checkpoint", f"{name.name}@{commit}"], [name.name, commit]
    folder, files, command = Path(model), list[Path](), "checkpoint"
    if is_onnx_model(folder):
        file, command = find_onnx(folder), "onnx"
        folder, files = settings_folder(file), files_of(file)
    # The content rather than times and sizes: a copied folder has the same bundle, and no change is missed. The server
    # hashes as many bytes at each start.
    digests = [
        f"{file} {_sha256(folder / file)}" for file in needed_files(lambda _: folder) if (folder / file).is_file()
    ]
    digests += [f"{file.name} {_sha256(file)}" for file in files]
    return [command, model], [usual_name(Path(model)), *digests]


def _graph_flags(settings: Settings) -> list[str]:
    """Return the flags of headwaiter-export for the graphs that a server with these settings may choose from."""
    cuda = settings.provider != "cpu"
    graphs = ["packed-cpu", "padded", "attend", *(["packed-cuda"] if cuda else [])]
    precisions = ["fp32", *(["fp16"] if cuda else []), *(["int8"] if settings.precision == "int8" else [])]
    return ["--graphs", *graphs, "--precision", *precisions]


def _code() -> str:
    """Return the digest of the export's code. Its version is the same at all commits between two releases."""
    package = Path(checkpoints.__path__[0]).parent
    return " ".join(_sha256(file) for file in sorted(package.rglob("*.py")))


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
