"""What to load and to unload, as a table: no healthy version gives way to a mere absence, error or damage."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from headwaiter_server.models.changes import changes
from headwaiter_server.models.folders import BundleFolder, ModelFolder, scan


def bundle(version: int, identity: str = "", files: str = "") -> BundleFolder:
    return BundleFolder("a", version, Path(f"a/{version}"), None, (identity,), (files,))


def folder(*bundles: BundleFolder, unreadable: Mapping[int | None, str] | None = None) -> ModelFolder:
    return ModelFolder({each.version: each for each in bundles}, unreadable or {})


ONE, TWO, THREE = bundle(1), bundle(2), bundle(3)
OTHER = {"b": ModelFolder()}
GONE = {("a", 2)}

# What the scan found, the served version, further arguments, and the result: bundles to load, models to unload, and
# versions that are missing for the first or the second time.
CASES: dict[str, tuple[Any, BundleFolder | None, Any, list[BundleFolder], bool, bool]] = {
    "a new model is loaded, the highest version first": ({"a": folder(ONE, TWO)}, None, {}, [TWO, ONE], False, False),
    "what is served stays": ({"a": folder(ONE, TWO)}, TWO, {}, [], False, False),
    "a higher version is loaded": ({"a": folder(ONE, TWO, THREE)}, TWO, {}, [THREE], False, False),
    "a version that failed is not tried again": (
        {"a": folder(TWO, THREE)},
        TWO,
        {"failed": {THREE}},
        [],
        False,
        False,
    ),
    "a version that failed is tried again with other files": (
        {"a": folder(TWO, bundle(3, files="repaired"))},
        TWO,
        {"failed": {THREE}},
        [bundle(3, files="repaired")],
        False,
        False,
    ),
    "another manifest of the served version is loaded": (
        {"a": folder(ONE, bundle(2, "other"))},
        TWO,
        {},
        [bundle(2, "other")],
        False,
        False,
    ),
    "a damaged replacement of the served version leads to no lower version": (
        {"a": folder(ONE, bundle(2, "damaged"))},
        TWO,
        {"failed": {bundle(2, "damaged")}},
        [],
        False,
        False,
    ),
    "another file in the served folder changes nothing": (
        {"a": folder(bundle(2, files="README"))},
        TWO,
        {},
        [],
        False,
        False,
    ),
    "an unreadable served version stays": (
        {"a": folder(ONE, unreadable={2: "Permission denied"})},
        TWO,
        {"missing_before": GONE},
        [],
        False,
        False,
    ),
    "an unreadable lower version changes nothing": (
        {"a": folder(TWO, unreadable={1: "No such file"})},
        TWO,
        {},
        [],
        False,
        False,
    ),
    "an unreadable model stays": (
        {"a": folder(unreadable={None: "Permission denied"})},
        TWO,
        {"missing_before": GONE},
        [],
        False,
        False,
    ),
    "an empty folder of models changes nothing": ({}, TWO, {"missing_before": GONE}, [], False, False),
    "a model that is missing once stays": (OTHER, TWO, {}, [], False, True),
    "a model that is missing twice is unloaded": (OTHER, TWO, {"missing_before": GONE}, [], True, True),
    "a version that is missing once stays": ({"a": folder(ONE)}, TWO, {}, [], False, True),
    "a version that is missing twice gives way to a lower one": (
        {"a": folder(ONE)},
        TWO,
        {"missing_before": GONE},
        [ONE],
        False,
        True,
    ),
    "a version that is missing twice stays if no other one can be served": (
        {"a": folder(ONE)},
        TWO,
        {"missing_before": GONE, "failed": {ONE}},
        [],
        False,
        True,
    ),
    "an unwanted model is unloaded and not loaded": (
        {"a": folder(TWO, THREE)},
        TWO,
        {"unwanted": {"a"}},
        [],
        True,
        False,
    ),
    "an unwanted model is unloaded although the folder is empty": ({}, TWO, {"unwanted": {"a"}}, [], True, False),
}


@pytest.mark.parametrize("case", CASES)
def test_a_healthy_version_gives_way_only_to(case: str) -> None:
    found, served, arguments, load, unloads, missing = CASES[case]
    result = changes(found, {} if served is None else {"a": served}, **arguments)
    assert list(result.load.get("a", ())) == load
    assert result.unload == ({"a"} if unloads else set())
    assert result.missing == (GONE if missing else set())


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


def test_the_identity_of_a_version_follows_its_manifest_and_settings_and_not_other_files(tmp_path: Path) -> None:
    write_bundle(tmp_path / "a" / "1")
    before = scan(tmp_path)["a"].bundles[1]
    (tmp_path / "a" / "1" / "README").write_text("read me")
    with_readme = scan(tmp_path)["a"].bundles[1]
    assert with_readme.identity == before.identity
    assert with_readme.files != before.files
    (tmp_path / "a" / "settings.json").write_text("{}")
    assert scan(tmp_path)["a"].bundles[1].identity != before.identity


def test_a_missing_folder_of_models_is_an_error_and_no_absence(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        scan(tmp_path / "unmounted")
