"""A scan finds what is in a folder of models, and takes nothing for a model that would break a log or a reply."""

import os
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from headwaiter_server.models.folders import BundleFolder, scan


@pytest.mark.parametrize("name", [b"two\nlines", b"\xff", b"bell\x07", "right\u202eleft".encode()])
def test_a_name_that_cannot_be_printed_is_quoted_and_not_read(name: bytes, tmp_path: Path) -> None:
    for folder in (b"good", name):
        path = tmp_path / os.fsdecode(folder) / "1"
        path.mkdir(parents=True)
        (path / "manifest.json").write_text("{}")
    found = scan(tmp_path)
    (quoted,) = found.keys() - {"good"}
    assert quoted.isascii()
    assert quoted.isprintable()
    assert not found[quoted].bundles
    assert [*found[quoted].unreadable] == [None]
    assert [*found["good"].bundles] == [1]


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    (folder / "a" / "1").mkdir(parents=True)
    (folder / "a" / "1" / "manifest.json").write_text("{}")
    (folder / "a" / "settings.json").write_text("{}")
    return folder


def _found(models: Path) -> BundleFolder:
    return scan(models)["a"].bundles[1]


def _write_in_place(models: Path) -> None:
    file = models / "a" / "1" / "manifest.json"
    stat = file.stat()
    file.write_text("[]")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@pytest.mark.parametrize(
    ("change", "is_another"),
    [
        (lambda models: (models / "a" / "1" / "manifest.json").write_text("{}"), False),
        (lambda models: (models / "a" / "1" / "README.md").write_text("read me"), False),
        (lambda models: (models / "a" / "1").chmod(0o700), False),
        (lambda models: (models / "a" / "1" / "manifest.json").write_text("{ }"), True),
        (_write_in_place, True),
        (lambda models: (models / "a" / "settings.json").write_text("{ }"), True),
        (lambda models: (models / "a" / "settings.json").unlink(), True),
    ],
    ids=["same content", "another file", "permissions", "manifest", "same size and time", "settings", "no settings"],
)
def test_a_bundle_is_another_one_if_its_manifest_or_settings_have_other_content(
    change: Callable[[Path], object], is_another: bool, models: Path
) -> None:
    before = _found(models)
    change(models)
    assert (_found(models).identity != before.identity) is is_another


def test_scans_of_a_folder_in_the_place_of_a_manifest_leave_no_descriptor_open(models: Path) -> None:
    (models / "a" / "2" / "manifest.json").mkdir(parents=True)
    before = psutil.Process().num_fds()
    for _ in range(10):
        assert sorted(scan(models)["a"].bundles) == [1, 2]
    assert psutil.Process().num_fds() == before
