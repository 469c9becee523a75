"""Copy, change and damage bundles."""

import shutil
from collections.abc import Iterable
from pathlib import Path

from google.protobuf import json_format

from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_server.runtime.bundle import MANIFEST, sha256_of


def copy(bundle: Path, destination: Path) -> Path:
    """Copy a bundle into a folder where a test may change it."""
    return Path(shutil.copytree(bundle, destination / "bundle"))


def read_manifest(folder: Path) -> Manifest:
    return json_format.Parse((folder / MANIFEST).read_text(), Manifest())


def write_manifest(folder: Path, manifest: Manifest) -> None:
    (folder / MANIFEST).write_text(json_format.MessageToJson(manifest))


def sign(folder: Path, names: Iterable[str]) -> None:
    """Write the current checksums of files to the manifest, to keep changes of these files undetected."""
    manifest = read_manifest(folder)
    for file in manifest.files:
        if file.name in names:
            path = folder / file.name
            file.size_bytes, file.sha256 = path.stat().st_size, sha256_of(path)
    write_manifest(folder, manifest)


def flip_byte(path: Path, position: float = 0.5) -> None:
    """Invert the bits of one byte, at a position between the first byte (0) and the last byte (1)."""
    content = bytearray(path.read_bytes())
    content[int(position * (len(content) - 1))] ^= 0xFF
    path.write_bytes(content)
