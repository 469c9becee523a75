"""deploy/release.sh writes the files of a release of a clean commit, with its notes and checksums."""

import hashlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy.test_tag import ROOT, VERSION, run

FILES = (
    "deploy/tag.sh",
    "deploy/release.sh",
    "deploy/kubernetes/headwaiter/Chart.yaml",
    "pyproject.toml",
    ".gitignore",
)
# In place of the real one, which is not among the packages of the tests.
HATCHLING = f"""#!/bin/sh
echo wheel > "$3/headwaiter-{VERSION}-py3-none-any.whl"
"""
CHANGELOG = f"""# Changelog

## [Unreleased]

- not yet released

## [{VERSION}] - 2026-12-01

- first, with [a link over two
  lines](docs/page.md#heading)

## [0.0.9]

- older
"""


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository of one commit with the lists of `make sbom`, and put a stand-in of hatchling on the PATH."""
    clone, programs = tmp_path / "clone", tmp_path / "bin"
    for name in FILES:
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, clone / name)
    (clone / "CHANGELOG.md").write_text(CHANGELOG)
    run(clone, "git", "init", "--quiet")
    run(clone, "git", "add", "--all")
    run(clone, "git", "commit", "--quiet", "--message", "change")
    (clone / "build" / "sbom").mkdir(parents=True)
    (clone / "build" / "sbom" / "server-cpu.cdx.json").write_text("{}")
    programs.mkdir()
    (programs / "hatchling").write_text(HATCHLING)
    (programs / "hatchling").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    return clone


def refusal(clone: Path) -> str:
    result = subprocess.run(["deploy/release.sh"], cwd=clone, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert not (clone / "build" / "release").exists()
    return result.stderr


def test_a_release_has_its_files_notes_checksums_and_tags(clone: Path) -> None:
    printed = run(clone, "deploy/release.sh")
    tag = f"{VERSION}-{run(clone, 'git', 'rev-parse', 'HEAD')[:12]}"
    assert printed.splitlines()[1:] == [
        f"{image}:{tag}" for image in ("headwaiter-server", "headwaiter-server-cpu", "headwaiter-export")
    ]
    release = clone / "build" / "release"
    assert (release / "notes.md").read_text().strip() == "- first, with a link over two\n  lines"
    lines = (release / "SHA256SUMS").read_text().splitlines()
    sums = {name: digest for digest, name in map(str.split, lines)}
    assert sums.keys() == {f"headwaiter-{VERSION}-py3-none-any.whl", "server-cpu.cdx.json", "notes.md"}
    for name, digest in sums.items():
        assert hashlib.sha256((release / name).read_bytes()).hexdigest() == digest


def test_the_images_have_the_names_of_the_compose_files() -> None:
    named = set(
        re.findall(r"image: (headwaiter-[\w-]+):", "".join(map(Path.read_text, ROOT.glob("docker-compose*.yml"))))
    )
    assert named == set(re.findall(r'"(headwaiter-[\w-]+):\$TAG"', (ROOT / "deploy" / "release.sh").read_text()))


@pytest.mark.parametrize(
    ("name", "old", "new", "word"),
    [
        ("CHANGELOG.md", f"## [{VERSION}]", "## [0.0.8]", f"no section [{VERSION}]"),
        ("deploy/kubernetes/headwaiter/Chart.yaml", f"appVersion: {VERSION}", "appVersion: 0.0.9", "Chart.yaml"),
        ("pyproject.toml", "grpcio", "grpcio ", "commit"),
    ],
    ids=["no notes", "another version of the chart", "a change that is not committed"],
)
def test_a_release_that_would_be_wrong_is_refused(clone: Path, name: str, old: str, new: str, word: str) -> None:
    text = (clone / name).read_text()
    assert old in text
    (clone / name).write_text(text.replace(old, new))
    assert word in refusal(clone)


def test_the_chart_installs_the_version_of_the_package() -> None:
    chart = (ROOT / "deploy" / "kubernetes" / "headwaiter" / "Chart.yaml").read_text()
    assert re.findall(r"(?m)^appVersion: (.+)$", chart) == [VERSION]
