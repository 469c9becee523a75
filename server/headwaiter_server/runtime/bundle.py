"""Read a bundle, the folder that holds a model, and check its files against its manifest."""

import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory, gettempdir

from google.protobuf import json_format

from headwaiter_proto.manifest_pb2 import File, Graph, Manifest, Parity
from headwaiter_proto.model_source import HubName, is_onnx
from headwaiter_proto.rules.images import min_tokens
from headwaiter_server.runtime.errors import BundleChanged, BundleRefused, NotEnoughMemory, one_line
from headwaiter_server.runtime.files import open_regular_file, read_small_file
from headwaiter_server.runtime.golden_reader import Golden, read_golden
from headwaiter_server.runtime.manifest import check_manifest, graphs_of
from headwaiter_server.runtime.results_digest import deciding_fields, results_digest

MANIFEST = "manifest.json"
# Transformers writes this file into every checkpoint folder.
_CHECKPOINT_CONFIG = "config.json"
GOLDEN = "golden.npz"
PARITY = "parity.json"
TOKENIZER = "tokenizer.json"
# A bundle has version 2 if readers of version 1 would give other vectors or scores than the model, because they do not
# know the pooling, the modules after it, the token types, the text around pairs or what prompts do besides putting a
# text before others. All other bundles have version 1.
SCHEMA_VERSIONS = (1, 2)
# A manifest has kilobytes. Labels of a head can be long.
_MAX_JSON_BYTES = 16 << 20
_MAX_QUOTED_CHARACTERS = 300
_MAX_NAME_CHARACTERS = 100
_COPIED_BYTES = 1 << 20
# The names of the folders of copies begin so, and no name that a person chooses does: a load removes such folders.
# Between its creation and its lock, a folder is young.
_COPIES, _YOUNG_S = ".headwaiter-copies-of-weights-", 60.0


@dataclass(frozen=True)
class Bundle:
    """A bundle; after `open`, its files are complete and match the checksums in its manifest.

    Attributes:
        folder: path of the bundle.
        manifest: description of the model and checksums of the files.
        digest: SHA-256 of the manifest, in hexadecimal; covers every file, because the manifest has their checksums.
        deciding_fields: the fields of the manifest on disk that decide results.
    """

    folder: Path
    manifest: Manifest
    digest: str
    deciding_fields: str = ""

    @classmethod
    def open(cls, folder: Path) -> "Bundle":
        """Read the manifest and check every file against it.

        Raises:
            BundleRefused: a file is missing, damaged or unreadable, or contradicts the manifest; the message names the
                file.
        """
        bundle = cls.described(folder)
        bundle.check_files()
        return bundle

    @classmethod
    def described(cls, folder: Path) -> "Bundle":
        """Read the manifest alone, and check that it is complete.

        Raises:
            BundleRefused: the manifest is missing, damaged or unreadable.
        """
        path = folder / MANIFEST
        try:
            text = read_small_file(path, _MAX_JSON_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            if (folder / _CHECKPOINT_CONFIG).is_file():
                raise BundleRefused(
                    f"{folder} is a checkpoint, not a bundle: export and serve it with headwaiter serve {folder}, or "
                    f"make a bundle with headwaiter-export checkpoint {folder} -o BUNDLE, and serve BUNDLE"
                ) from None
            if is_onnx(str(folder)):
                raise BundleRefused(
                    f"{folder} is an ONNX file, not a bundle: export and serve it with headwaiter serve {folder}, or "
                    f"make a bundle with headwaiter-export onnx {folder} -o BUNDLE, and serve BUNDLE"
                ) from None
            if HubName.parse(str(folder)):
                raise BundleRefused(
                    f"there is no bundle at {folder}: if this is a name on a hub, export and serve it with headwaiter "
                    f"serve {folder}"
                ) from None
            raise BundleRefused(
                f"there is no bundle at {folder}: make one with headwaiter-export checkpoint FOLDER -o {folder}"
            ) from None
        except OSError as error:
            raise BundleRefused(f"{path} cannot be read ({error.strerror}): let the server's user read it") from None
        try:
            # A later schema may add fields. The version check below refuses that schema with a clearer message.
            manifest = json_format.Parse(text, Manifest(), ignore_unknown_fields=True)
        except (json_format.ParseError, ValueError, RecursionError) as error:
            raise BundleRefused(
                f"{path} is not a manifest that this server can read ({_quoted(error)}): export the model again"
            ) from None
        if manifest.schema_version not in SCHEMA_VERSIONS:
            readable = " and ".join(map(str, SCHEMA_VERSIONS))
            raise BundleRefused(
                f"{path} has schema version {manifest.schema_version}; this server reads versions {readable}: export "
                "the model again with the server's version of headwaiter-export"
            )
        with naming(path):
            check_manifest(manifest)
        return cls(folder, manifest, hashlib.sha256(text).hexdigest(), deciding_fields(manifest))

    @contextmanager
    def private_copy(self, *names: str) -> Iterator[Path]:
        """Copy files into a folder that nobody else writes to, and delete the folder after the block.

        ONNX Runtime maps weights from their file, and a mapping outlives the file's name. If somebody wrote to the
        bundle's own file, the mapped weights would change, or the process would end with SIGBUS.

        Raises:
            BundleChanged: a file is not the one that was checked when the bundle was opened.
            NotEnoughMemory: the folder for temporary files has no room for the copies.
        """
        with ExitStack() as stack:
            private = Path(stack.enter_context(_temporary_folder()))
            for file in {file.name: file for file in self.manifest.files}.values():
                if file.name in names:
                    digest = _copy(self.folder / file.name, private / file.name)
                    if digest != file.sha256:
                        raise _changed(self.folder / file.name)
            yield private

    def results_digest(self, graph: Graph, golden: Golden) -> str:
        """Return the digest of what decides the results of a graph; see `results_digest`."""
        sha256 = {file.name: file.sha256 for file in self.manifest.files}
        tokenizer = sha256[TOKENIZER] if self.manifest.max_text_tokens else ""
        return results_digest(
            graph.precision, sha256[graph.weights_file], tokenizer, self.deciding_fields, golden.summary
        )

    def limit_tokens(self, tokens: int) -> None:
        """Accept only sequences of at most this many tokens.

        Raises:
            BundleRefused: the model has no sequences as short as this.
        """
        manifest = self.manifest
        if tokens < min_tokens(manifest):
            raise BundleRefused(
                f"the model in {self.folder} takes sequences of at least {min_tokens(manifest)} tokens: raise "
                f"--max-sequence-tokens {tokens}"
            )
        manifest.max_tokens = min(manifest.max_tokens, tokens)
        manifest.max_text_tokens = min(manifest.max_text_tokens, tokens)
        for prompt in manifest.prompts:
            if prompt.expanded_tokens > tokens:
                raise BundleRefused(
                    f"the model in {self.folder} fills up texts to {prompt.expanded_tokens} tokens: raise "
                    f"--max-sequence-tokens {tokens}"
                )
            prompt.max_tokens = min(prompt.max_tokens, tokens)

    def golden(self) -> Golden:
        """Read the golden inputs that the model accepts, and PyTorch's outputs for them.

        Raises:
            BundleChanged: the file is not the one that was checked when the bundle was opened.
            BundleRefused: the golden inputs contradict the manifest, or cannot reveal a wrong graph.
        """
        with self.private_copy(GOLDEN) as folder, naming(self.folder / GOLDEN):
            return read_golden(folder / GOLDEN, self.manifest).up_to(self.manifest.max_tokens)

    def parity(self) -> Parity:
        """Read the differences from PyTorch that the export measured.

        Raises:
            BundleChanged: the file is not the one that was checked when the bundle was opened.
            BundleRefused: the file cannot be read.
        """
        with self.private_copy(PARITY) as folder, naming(self.folder / PARITY):
            try:
                return json_format.Parse(
                    read_small_file(folder / PARITY, _MAX_JSON_BYTES), Parity(), ignore_unknown_fields=True
                )
            except (json_format.ParseError, OSError, ValueError, RecursionError) as error:
                raise BundleRefused(f"cannot be read ({_quoted(error)})") from None

    def check_files(self) -> None:
        """Check that the bundle has every file that it needs, and that each file matches its checksum."""
        files_with_checksum = {file.name for file in self.manifest.files}
        graphs = graphs_of(self.manifest)
        needed_files = {name for graph in graphs for name in (graph.file, graph.weights_file)}
        needed_files |= {GOLDEN, PARITY} | ({TOKENIZER} if self.manifest.max_text_tokens else set())
        for missing in sorted(needed_files - files_with_checksum):
            name = missing[:_MAX_NAME_CHARACTERS]
            raise BundleRefused(f"{self.folder / MANIFEST} has no checksum for {name!r}: export the model again")
        for file in self.manifest.files:
            name = file.name[:_MAX_NAME_CHARACTERS]
            if not name == file.name == Path(name).name or not name.isprintable():
                raise BundleRefused(
                    f"{self.folder / MANIFEST} names {name!r}, which is no file of a bundle: export the model again"
                )
            self._check(file)

    def _check(self, file: File) -> None:
        """Check a file against its checksum."""
        path = self.folder / file.name
        try:
            size_bytes = path.stat().st_size
            digest = sha256_of(path) if size_bytes == file.size_bytes else ""
        except FileNotFoundError:
            raise BundleRefused(
                f"{path} is missing, so the bundle is incomplete: copy or export the bundle again"
            ) from None
        except OSError as error:
            raise BundleRefused(f"{path} cannot be read ({error.strerror}): let the server's user read it") from None
        if digest != file.sha256:
            damage = "its SHA-256 differs from the manifest's"
            if size_bytes != file.size_bytes:
                damage = f"it has {size_bytes:,} bytes, and the manifest says {file.size_bytes:,}"
            raise BundleRefused(f"{path} is damaged ({damage}): copy or export the bundle again")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Put a file's path before the message of a BundleRefused, and what to do after it."""
    try:
        yield
    except BundleChanged:
        raise
    except BundleRefused as error:
        raise BundleRefused(f"{path} {error}: export the model again") from None


def _quoted(error: Exception) -> str:
    """Return an error's message in one line that is not too long for a log; it may quote much of a file."""
    message = one_line(error)
    return message if len(message) <= _MAX_QUOTED_CHARACTERS else f"{message[:_MAX_QUOTED_CHARACTERS]} …"


@contextmanager
def _temporary_folder() -> Iterator[str]:
    _remove_leftovers()
    try:
        folder = TemporaryDirectory(prefix=_COPIES)
    except OSError as error:
        raise _no_room(error) from None
    with folder as name, _locked(Path(name)):
        yield name


def _remove_leftovers() -> None:
    """Remove the copies of servers that were killed during a load; a copy in use is locked."""
    for folder in Path(gettempdir()).glob(f"{_COPIES}*"):
        with suppress(OSError), _locked(folder):
            if time.time() - folder.stat().st_mtime > _YOUNG_S:
                rmtree(folder)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a folder for this process; raise an OSError if another process has locked the folder."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(opened)


def _copy(source: Path, target: Path) -> str:
    """Copy a file, and return the SHA-256 of the copy in hexadecimal."""
    digest = hashlib.sha256()
    try:
        file = open_regular_file(source)
    except OSError:
        raise _changed(source) from None
    with file:
        try:
            with target.open("xb") as copy:
                while part := file.read(_COPIED_BYTES):
                    digest.update(part)
                    copy.write(part)
        except OSError as error:
            raise _no_room(error) from None
    return digest.hexdigest()


def _no_room(error: OSError) -> NotEnoughMemory:
    return NotEnoughMemory(
        f"the weights cannot be copied into the folder for temporary files ({error.strerror}): set TMPDIR to a folder "
        "with enough free space"
    )


def _changed(path: Path) -> BundleChanged:
    return BundleChanged(
        f"{path} is not the file that the server checked when it opened the bundle: restart the server, and put each "
        "new bundle into a new folder"
    )


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with open_regular_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
