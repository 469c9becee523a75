"""A scan finds what is in a folder of models, and takes nothing for a model that would break a log or a reply."""

import os
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from headwaiter_server.models.folders import scan


def write_bundle(path: Path) -> None:
    path.mkdir(parents=True)
    (path / "manifest.json").write_text("{}")


def test_a_scan_reports_what_it_cannot_read_beside_what_it_can(tmp_path: Path) -> None:
    for version in ("1", "10", "02", "x", ".3"):
        write_bundle(tmp_path / "a" / version)
    (tmp_path / "a" / "4").mkdir()
    (tmp_path / "a" / "5").symlink_to("5")
    (tmp_path / "b").symlink_to("b")
    (tmp_path / "README").write_text("")
    (tmp_path / "a" / "20240101").write_text("")
    (tmp_path / "lost+found").mkdir()
    write_bundle(tmp_path / ".hidden" / "1")
    write_bundle(tmp_path / "c")
    # An empty folder does not hide the bundle beside it.
    (tmp_path / "c" / "1").mkdir()
    found = scan(tmp_path)
    assert {name: set(each.bundles) for name, each in found.items()} == {
        "a": {1, 10},
        "b": set(),
        "c": {1},
    }
    assert {name: set(each.unreadable) for name, each in found.items() if each.unreadable} == {"a": {5}, "b": {None}}
    assert {name: set(each.ignored) for name, each in found.items() if each.ignored} == {"a": {"02", "x", "4"}}


def test_a_folder_that_cannot_be_read_hides_no_version_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_bundle(tmp_path / "a" / "1")
    (tmp_path / "a" / "lost+found").mkdir()
    stat = os.stat

    def stat_without_permission(path: str | Path, **options: bool) -> os.stat_result:
        if "lost+found/" in str(path):
            raise PermissionError(13, "Permission denied")
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", stat_without_permission)
    found = scan(tmp_path)["a"]
    assert (set(found.bundles), found.unreadable, found.ignored) == ({1}, {}, {})


def test_a_missing_folder_of_models_is_an_error_and_no_absence(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        scan(tmp_path / "unmounted")


@pytest.mark.parametrize("name", [b"two\nlines", b"\xff", b"bell\x07", "right\u202eleft".encode()])
def test_a_name_that_cannot_be_printed_is_quoted_and_not_read(name: bytes, tmp_path: Path) -> None:
    for folder in (b"good", name):
        write_bundle(tmp_path / os.fsdecode(folder) / "1")
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
    write_bundle(folder / "a" / "1")
    (folder / "a" / "settings.json").write_text("{}")
    return folder


def _write_in_place(models: Path) -> None:
    file = models / "a" / "1" / "manifest.json"
    stat = file.stat()
    file.write_text("[]")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@pytest.mark.parametrize(
    ("change", "is_another"),
    [
        (lambda models: (models / "a" / "1" / "manifest.json").write_text("{}"), False),
        (lambda models: (models / "a" / "1").chmod(0o700), False),
        (lambda models: (models / "a" / "1" / "manifest.json").write_text("{ }"), True),
        (_write_in_place, True),
        (lambda models: (models / "a" / "settings.json").write_text("{ }"), True),
        (lambda models: (models / "a" / "settings.json").unlink(), True),
    ],
    ids=["same content", "permissions", "manifest", "same size and time", "settings", "no settings"],
)
def test_a_bundle_is_another_one_if_its_manifest_or_settings_have_other_content(
    change: Callable[[Path], object], is_another: bool, models: Path
) -> None:
    before = scan(models)["a"].bundles[1]
    change(models)
    assert (scan(models)["a"].bundles[1].identity != before.identity) is is_another


def test_another_file_in_its_folder_makes_no_other_bundle(models: Path) -> None:
    before = scan(models)["a"].bundles[1]
    (models / "a" / "1" / "README.md").write_text("read me")
    after = scan(models)["a"].bundles[1]
    assert (after.identity == before.identity, after.files == before.files) == (True, False)


def test_scans_of_a_folder_in_the_place_of_a_manifest_leave_no_descriptor_open(models: Path) -> None:
    (models / "a" / "2" / "manifest.json").mkdir(parents=True)
    before = psutil.Process().num_fds()
    for _ in range(10):
        assert sorted(scan(models)["a"].bundles) == [1, 2]
    assert psutil.Process().num_fds() == before
