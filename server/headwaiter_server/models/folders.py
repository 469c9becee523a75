"""Find the models and their versions in a folder of models."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headwaiter_server.runtime.bundle import MANIFEST
from headwaiter_server.runtime.files import open_regular_file

SETTINGS = "settings.json"
# A folder that file systems make at their root.
_LOST_AND_FOUND = "lost+found"
# Of longer manifests, which are refused, only the beginning is compared.
_COMPARED_BYTES = 1 << 20


@dataclass(frozen=True)
class FoundVersion:
    """The folder of one version of a model.

    Attributes:
        name: name of the model.
        version: version of the model.
        settings: the file of the model's own settings, which may be missing; None for a single bundle.
        identity: the SHA-256 of the manifest, which has those of all other files, and of the file of settings.
        files: changes when any file of the bundle is replaced or written to.
    """

    name: str
    version: int
    folder: Path
    settings: Path | None = None
    identity: tuple[str, ...] = ()
    files: tuple[object, ...] = ()


@dataclass(frozen=True)
class FoundModel:
    """What a scan found in the folder of one model.

    Attributes:
        bundles: the versions that can be read.
        unreadable: why a version, or with the key None the whole folder, cannot be read. What cannot be read may still
            be there.
        ignored: the folders that look like versions and are none: the name of each, and the reason.
    """

    bundles: Mapping[int, FoundVersion] = field(default_factory=dict)
    unreadable: Mapping[int | None, str] = field(default_factory=dict)
    ignored: Mapping[str, str] = field(default_factory=dict)

    def may_hold(self, version: int) -> bool:
        """Return whether the folder has this version, as far as the scan could see."""
        return version in self.bundles or version in self.unreadable or None in self.unreadable


def scan(folder: Path) -> dict[str, FoundModel]:
    """Return what is in a folder of models, by the name of the model.

    A model is a folder NAME with bundles NAME/VERSION; VERSION is a whole number without leading zeros. A bundle
    directly in NAME is version 1. Other files and folders, and hidden folders, are ignored. A name that cannot be
    printed, with which a log or a reply would break, is quoted and its folder not read.

    Raises:
        OSError: the folder itself cannot be read.
    """
    found: dict[str, FoundModel] = {}
    for model in sorted(folder.iterdir()):
        if not model.name.isprintable():
            found[ascii(model.name)] = FoundModel(unreadable={None: "its name has characters that cannot be printed"})
        elif not model.name.startswith(".") and model.name != _LOST_AND_FOUND and (inside := _scan_model(model)):
            found[model.name] = inside
    return found


def _scan_model(model: Path) -> FoundModel | None:
    """Return what is in the folder of a model; None for what is not a folder."""
    try:
        if not _is_folder(model):
            return None
        names = [each.name for each in model.iterdir()]
    except OSError as error:
        return FoundModel(unreadable={None: _reason(error)})
    folders = {int(name): model / name for name in names if name.isdecimal() and str(int(name)) == name}
    ignored = {
        name: "the name of a version is a whole number without leading zeros"
        for name in names
        if name.isprintable() and not name.startswith(".") and model / name not in folders.values()
        # `Path.exists` would raise an error for a folder that cannot be read, such as lost+found.
        if os.path.exists(model / name / MANIFEST)  # noqa: PTH110
    }
    if MANIFEST in names and not (model / "1" / MANIFEST).exists():
        folders[1] = model
    bundles: dict[int, FoundVersion] = {}
    unreadable: dict[int | None, str] = {}
    for version, bundle in folders.items():
        try:
            manifest, settings = _sha256(bundle / MANIFEST), model / SETTINGS
            if manifest is not None:
                identity = (manifest, _sha256(settings) or "")
                files = _state(bundle)
                bundles[version] = FoundVersion(model.name, version, bundle, settings, identity, files)
            elif bundle.is_dir():
                ignored[bundle.name] = f"it has no {MANIFEST}"
        except NotADirectoryError:
            continue
        except OSError as error:
            unreadable[version] = _reason(error)
    return FoundModel(bundles, unreadable, ignored)


def _is_folder(path: Path) -> bool:
    """Return whether a path is a folder. `Path.is_dir` would also return False if the path cannot be read."""
    try:
        os.scandir(path).close()
    except NotADirectoryError:
        return False
    return True


def _sha256(path: Path) -> str | None:
    """Return the SHA-256 of a file; None if there is no file, and another text for what is no regular file."""
    try:
        with open_regular_file(path) as file:
            return hashlib.sha256(file.read(_COMPARED_BYTES)).hexdigest()
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno:
            raise
        return error.strerror


def _state(folder: Path) -> tuple[object, ...]:
    """Return what changes when a file of a folder is replaced or written to, without reading the files."""
    # A link that leads nowhere is no file.
    stats = [(file.name, file.stat()) for file in sorted(folder.iterdir()) if file.exists()]
    return tuple((name, stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in stats)


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__
