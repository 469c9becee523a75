"""Read a bundle, the folder that holds a model, and check its files against its manifest."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from google.protobuf import json_format
from numpy.typing import NDArray

from headwaiter_proto.manifest_pb2 import Manifest, Parity
from headwaiter_server.runtime.errors import BundleRefused
from headwaiter_server.runtime.graph import Outputs

MANIFEST = "manifest.json"
GOLDEN = "golden.npz"
PARITY = "parity.json"
TOKENIZER = "tokenizer.json"
SCHEMA_VERSION = 1


@dataclass(frozen=True, eq=False)
class Golden:
    """The golden inputs of a bundle, with PyTorch's float32 outputs for them.

    Attributes:
        sequences: token ids [n_i] or features [n_i, d_in] of each sequence.
        outputs: pooled [B, width], of unit length if the model normalizes; hidden [T, width], or fewer rows.
        hidden_rows: the rows of all T that `outputs.hidden` holds; None for all rows.
    """

    sequences: list[NDArray[np.generic]]
    outputs: Outputs
    hidden_rows: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class Bundle:
    """A bundle whose files are complete and match the checksums in its manifest.

    Attributes:
        folder: path of the bundle.
        manifest: description of the model and checksums of the files.
        digest: SHA-256 of the manifest, in hexadecimal; covers every file, because the manifest has their checksums.
    """

    folder: Path
    manifest: Manifest
    digest: str

    @classmethod
    def open(cls, folder: Path) -> "Bundle":
        """Read the manifest and check every file against it.

        Raises:
            BundleRefused: a file is missing, damaged or unreadable; the message names the file.
        """
        path = folder / MANIFEST
        try:
            text = path.read_bytes()
        except OSError:
            raise BundleRefused(
                f"there is no bundle at {folder}: make one with headwaiter-export checkpoint FOLDER -o {folder}"
            ) from None
        try:
            # A later schema may add fields. The version check below refuses that schema with a clearer message.
            manifest = json_format.Parse(text, Manifest(), ignore_unknown_fields=True)
        except (json_format.ParseError, UnicodeDecodeError) as error:
            raise BundleRefused(
                f"{path} is not a manifest that this server can read ({error}): export the model again"
            ) from None
        if manifest.schema_version != SCHEMA_VERSION:
            raise BundleRefused(
                f"{path} has schema version {manifest.schema_version}; this server reads version {SCHEMA_VERSION}: "
                "export the model again with the server's version of headwaiter-export"
            )
        bundle = cls(folder, manifest, hashlib.sha256(text).hexdigest())
        bundle._verify()
        return bundle

    def golden(self) -> Golden:
        """Read the golden inputs and PyTorch's outputs for them."""
        with np.load(self.folder / GOLDEN, allow_pickle=False) as arrays:
            rows = arrays["input_ids" if self.manifest.vocabulary_size else "features"]
            lengths = arrays["lengths"]
            outputs = Outputs(arrays.get("pooled"), arrays["hidden"])
            return Golden(np.split(rows, np.cumsum(lengths)[:-1]), outputs, arrays.get("hidden_rows"))

    def parity(self) -> Parity:
        """Read the differences from PyTorch that the export measured."""
        return json_format.Parse((self.folder / PARITY).read_bytes(), Parity())

    def _verify(self) -> None:
        """Check that the bundle has every file that it needs, and that each file matches its checksum."""
        files_with_checksum = {file.name for file in self.manifest.files}
        graphs = [*self.manifest.graphs, *([self.manifest.attend] if self.manifest.HasField("attend") else [])]
        needed_files = {name for graph in graphs for name in (graph.file, graph.weights_file)}
        needed_files |= {GOLDEN, PARITY} | ({TOKENIZER} if self.manifest.max_text_tokens else set())
        for missing in sorted(needed_files - files_with_checksum):
            raise BundleRefused(f"{self.folder / MANIFEST} has no checksum for {missing}: export the model again")
        for file in self.manifest.files:
            path = self.folder / file.name
            if Path(file.name).name != file.name:
                raise BundleRefused(
                    f"{self.folder / MANIFEST} names {file.name!r}, which is outside the bundle: export the model again"
                )
            if not path.is_file():
                raise BundleRefused(f"{path} is missing, so the bundle is incomplete: copy or export the bundle again")
            if path.stat().st_size != file.size_bytes or sha256_of(path) != file.sha256:
                raise BundleRefused(
                    f"{path} is damaged (its SHA-256 differs from the manifest's): copy or export the bundle again"
                )


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
