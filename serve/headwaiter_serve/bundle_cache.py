"""The folder of exported bundles. Its names are digests of what decides the content of a bundle."""

import hashlib
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import IO

import headwaiter_export
import headwaiter_proto
from headwaiter_export.bundle.atomic_folder import BundleError, take_lock
from headwaiter_export.checkpoints.hub import resolve
from headwaiter_export.checkpoints.model_path import check_model_path
from headwaiter_export.checkpoints.needed_files import needed_files
from headwaiter_export.checkpoints.onnx_paths import files_of, find_onnx, is_onnx_model, settings_folder, usual_name
from headwaiter_proto.model_source import HubName
from headwaiter_server import runtime
from headwaiter_server.settings.flags import Settings

# The packages whose code and data decide the content of a bundle. Their version is the same between two releases.
_CODE = (headwaiter_export, headwaiter_proto, runtime)
# The libraries that do: they compute, trace and compare models, and read tokenizers.
_LIBRARIES = (
    *("torch", "transformers", "tokenizers", "safetensors", "numpy"),
    *("onnx", "onnx-ir", "onnxscript", "onnxruntime", "onnxruntime-gpu"),
)


@contextmanager
def cached_bundle(model: str, settings: Settings, export_flags: Sequence[str] = ()) -> Iterator[tuple[Path, list[str]]]:
    """Yield the folder of a model's bundle, and the arguments of headwaiter-export that write it if it is missing.

    Other flags of the export, which are among these arguments, make another bundle.

    During the block, no other start exports the same model. A model that changes gets another folder. A bundle that is
    damaged is deleted.

    Raises:
        BundleError: the folder of bundles cannot be written.
        CheckpointError: the model cannot be found, or a file of it names one outside its folder.
    """
    (command, source) = _read(model)
    # An ONNX file has one graph.
    flags = [*([] if command[0] == "onnx" else _graph_flags(settings)), *export_flags]
    parts = [*source, *flags, *_code(), *map(_version, _LIBRARIES)]
    name = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
    with _lock_file(name) as lock:
        if not take_lock(lock):
            print(f"headwaiter: another start exports {model}: waiting for its bundle", file=sys.stderr)
            take_lock(lock, wait=True)
        bundle = Path(lock.name).with_suffix("")
        _delete_damaged(bundle)
        yield bundle, [*command, "-o", str(bundle), *flags]


def _lock_file(name: str) -> IO[str]:
    """Open the file beside a bundle that starts lock."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headwaiter" / "bundles"
        folder.mkdir(parents=True, exist_ok=True)
        return (folder / f"{name}.lock").open("w")
    except (OSError, RuntimeError) as error:  # A user may have no home.
        raise BundleError(
            f"the cache of bundles cannot be written ({error}): set XDG_CACHE_HOME to another folder"
        ) from None


def _delete_damaged(bundle: Path) -> None:
    if not bundle.is_dir():
        return
    # Imported here, because they load ONNX Runtime, which no first start needs.
    from headwaiter_server.runtime.bundle import Bundle
    from headwaiter_server.runtime.errors import BundleRefused

    try:
        Bundle.open(bundle)
    except BundleRefused as error:
        print(f"headwaiter: exporting again, because {error}", file=sys.stderr)
        shutil.rmtree(bundle)


def _read(model: str) -> tuple[list[str], list[str]]:
    """Return the command of headwaiter-export that reads a model, and what differs if the model differs."""
    if name := HubName.parse(model):
        commit = resolve(name)
        return ["checkpoint", f"{name.name}@{commit}"], [name.name, commit]
    folder, files, command = Path(model), list[Path](), "checkpoint"
    if is_onnx_model(folder):
        file, command = find_onnx(folder), "onnx"
        folder, files = settings_folder(file), files_of(file)
    else:
        check_model_path(model)
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
    precisions = [
        "fp32",
        *(["fp16"] if cuda else []),
        *[each for each in ("int8", "bf16") if each == settings.precision],
    ]
    return ["--graphs", *graphs, "--precision", *precisions]


def _code() -> list[str]:
    """Return the digest of each file of the packages in `_CODE`."""
    folders = (Path(folder) for package in _CODE for folder in package.__path__)
    files = (file for folder in folders for file in sorted(folder.rglob("*")) if file.is_file())
    return [f"{file.name} {_sha256(file)}" for file in files if file.suffix != ".pyc"]


def _version(library: str) -> str:
    """Return a library and its version; without a version if it is not installed."""
    try:
        return f"{library} {metadata.version(library)}"
    except metadata.PackageNotFoundError:
        return library


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
