"""Find the bundles in a folder of models."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from headwaiter_server.runtime.bundle import MANIFEST

log = logging.getLogger(__name__)

SETTINGS = "settings.json"


@dataclass(frozen=True)
class BundleFolder:
    """The folder of one version of a model.

    Attributes:
        name: name of the model.
        version: version of the model.
        settings: the file of the model's own settings, which may be missing; None for a single bundle.
        identity: changes when the bundle or the file of settings is replaced or written to.
    """

    name: str
    version: int
    folder: Path
    settings: Path | None = None
    identity: tuple[object, ...] = ()


def find_bundles(folder: Path) -> list[BundleFolder]:
    """Return the bundles NAME/VERSION in a folder, in order; VERSION is a whole number without leading zeros.

    A bundle directly in NAME is version 1. Other files and folders, and hidden folders, are ignored. A folder that
    cannot be read is named in the log.

    Raises:
        OSError: the folder itself cannot be read.
    """
    found: list[BundleFolder] = []
    for model in sorted(folder.iterdir()):
        if not model.name.startswith("."):
            try:
                found += _find_versions(model)
            except OSError as error:
                log.warning("%s is left out, because it cannot be read: %s", model, error)
    return found


def _find_versions(model: Path) -> list[BundleFolder]:
    if not model.is_dir():
        return []
    versions = {
        int(each.name): each for each in model.iterdir() if each.name.isdecimal() and str(int(each.name)) == each.name
    }
    versions.setdefault(1, model)
    settings = model / SETTINGS
    return [
        BundleFolder(
            model.name, version, bundle, settings, _identity([*bundle.iterdir(), *([settings] * settings.is_file())])
        )
        for version, bundle in sorted(versions.items())
        if (bundle / MANIFEST).is_file()
    ]


def _identity(files: Iterable[Path]) -> tuple[object, ...]:
    """Return what changes when a file is replaced or written to, without reading the files."""
    stats = ((file, file.stat()) for file in sorted(files) if file.is_file())
    return tuple((file, stat.st_ino, stat.st_size, stat.st_mtime_ns) for file, stat in stats)
