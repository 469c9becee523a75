"""deploy/tag.sh prints one tag for each commit, and says if the files of the images differ from the commit."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
# What is sent to the build: .dockerignore excludes all other files.
SENT = set(re.findall("^!(.+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE))


def run(folder: Path, *command: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.com") if command[0] == "git" else ()
    command = (command[0], *identity, *command[1:])
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


def tag(folder: Path) -> tuple[str, str]:
    variables = dict(line.split("=") for line in run(folder, "deploy/tag.sh").splitlines())
    assert variables.keys() == {"TAG", "REVISION"}
    return variables["TAG"], variables["REVISION"]


def commit(folder: Path) -> str:
    run(folder, "git", "add", "--all")
    run(folder, "git", "commit", "--quiet", "--message", "change")
    return run(folder, "git", "rev-parse", "HEAD").strip()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a repository of one commit, with a file in each place from which images are built."""
    for name in (*SENT, "docs"):
        source, target = ROOT / name, tmp_path / name
        if source.is_dir():
            target.mkdir()
            (target / "file").write_text("first")
        else:
            shutil.copy(source, target)
    for name in ("Dockerfile", ".dockerignore", ".gitignore", "deploy/tag.sh"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    run(tmp_path, "git", "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def test_the_tag_of_an_older_commit_is_the_same_after_newer_ones(clone: Path) -> None:
    first, before = run(clone, "git", "rev-parse", "HEAD").strip(), tag(clone)
    (clone / "server" / "file").write_text("second")
    second = commit(clone)
    after = tag(clone)
    run(clone, "git", "checkout", "--quiet", first[:12])
    assert before == tag(clone) == (f"{VERSION}-{first[:12]}", first)
    assert after == (f"{VERSION}-{second[:12]}", second)


@pytest.mark.parametrize("name", sorted(SENT | {"Dockerfile", ".dockerignore"}))
def test_the_tag_shows_a_change_of_what_images_are_built_from(clone: Path, name: str) -> None:
    path = clone / name
    with (path / "file" if path.is_dir() else path).open("a") as file:
        file.write("\n# changed\n")
    assert [text.endswith("-changed") for text in tag(clone)] == [True, True]


def test_a_new_file_is_a_change_but_files_outside_the_images_are_none(clone: Path) -> None:
    (clone / "docs" / "file").write_text("changed")
    (clone / "server" / "__pycache__").mkdir()
    (clone / "server" / "__pycache__" / "file").write_text("compiled")
    assert [text.endswith("-changed") for text in tag(clone)] == [False, False]
    (clone / "server" / "new").write_text("new")
    assert [text.endswith("-changed") for text in tag(clone)] == [True, True]


def test_the_build_gets_every_file_that_the_images_copy() -> None:
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    sources = {Path(source).parts[0] for line in copied for source in line.split()}
    assert sources == SENT
