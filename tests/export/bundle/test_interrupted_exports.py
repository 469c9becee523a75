"""An export that is interrupted, that meets another export, or that finds no room leaves no half bundle behind."""

import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from headwaiter_export.bundle.atomic_folder import BundleError, atomic_folder
from tests.export.conftest import Refused
from tests.support.export.helpers import assert_mentions
from tests.support.tiers import exhaustive

PRESET = ["preset", "transformer-encoder", "--set", "feature_width=6", "--set", "layers=1", "--precision", "fp32"]
EXPORT = "import sys; from headwaiter_export.cli import main; sys.exit(main(sys.argv[1:]))"
# Writes half a bundle, and waits to be killed.
HALF = """
import sys, time
from pathlib import Path
from types import SimpleNamespace
from headwaiter_export.bundle.atomic_folder import atomic_folder
with atomic_folder(Path(sys.argv[1])) as folder:
    (folder / "weights.bin").write_bytes(bytes(1000))
    print("written", flush=True)
    time.sleep(60)
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a Python program with arguments; kill it after the test."""

    def run(program: str, *arguments: object) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", program, *map(str, arguments)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        processes.enter_context(process)
        processes.callback(process.kill)
        return process

    with ExitStack() as processes:
        yield run


@pytest.mark.usefixtures("starts_processes")
@pytest.mark.parametrize("early", [*exhaustive(pytest.param(True, id="import")), pytest.param(False, id="export")])
@pytest.mark.parametrize(
    ("number", "status", "message"),
    [
        *exhaustive((signal.SIGTERM, 143, "")),
        (signal.SIGINT, 130, "headwaiter-export: interrupted: {} was not written\n"),
    ],
)
def test_a_stopped_export_deletes_what_it_wrote(
    early: bool, number: signal.Signals, status: int, message: str, start: Start, tmp_path: Path
) -> None:
    bundle = tmp_path / "bundle"
    process = start(EXPORT, *PRESET, "-o", bundle)
    if early:
        time.sleep(0.7)  # Python has started, and torch is being imported.
    else:
        _wait_for(tmp_path / ".bundle.part")
    process.send_signal(number)
    _, error = process.communicate(timeout=30)
    assert (process.returncode, error) == (status, message.format(bundle))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("starts_processes")
def test_an_export_replaces_what_a_killed_export_left(start: Start, tmp_path: Path) -> None:
    killed = start(HALF, tmp_path / "bundle")
    assert killed.stdout is not None
    assert killed.stdout.readline() == "written\n"
    killed.kill()
    killed.wait()
    assert (tmp_path / ".bundle.part" / "weights.bin").exists()
    with atomic_folder(tmp_path / "bundle") as folder:
        assert list(folder.iterdir()) == []
        (folder / "manifest.json").touch()
    assert list(tmp_path.rglob("*")) == [tmp_path / "bundle", tmp_path / "bundle" / "manifest.json"]


@pytest.mark.usefixtures("starts_processes")
def test_a_second_export_to_the_same_folder_is_refused_at_once(start: Start, tmp_path: Path) -> None:
    first = start(HALF, tmp_path / "bundle")
    assert first.stdout is not None
    assert first.stdout.readline() == "written\n"
    with pytest.raises(BundleError) as refusal, atomic_folder(tmp_path / "bundle"):
        pass
    assert_mentions(refusal.value, "another export", str(tmp_path / "bundle"))
    assert (tmp_path / ".bundle.part" / "weights.bin").exists()


def test_an_export_without_room_is_refused_with_the_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10_000))
    refused(PRESET, "needs about", "0 MB free", str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    # A file above the limit fails to grow, as on a full disk.
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(BundleError) as refusal, atomic_folder(tmp_path / "bundle") as folder:
            (folder / "weights.bin").write_bytes(bytes(2000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert_mentions(refusal.value, str(tmp_path / "bundle"), "File too large", "MB free")
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_place_of_the_hidden_folder_is_refused_and_stays(tmp_path: Path) -> None:
    (tmp_path / ".bundle.part").touch()
    with pytest.raises(BundleError) as refusal, atomic_folder(tmp_path / "bundle"):
        pass
    assert_mentions(refusal.value, "File exists", str(tmp_path / ".bundle.part"))
    assert list(tmp_path.iterdir()) == [tmp_path / ".bundle.part"]


@pytest.mark.parametrize("name", ["model/config.json", ".bundle/x"])
def test_an_unreadable_file_of_the_model_is_no_error_of_the_bundle(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PermissionError), atomic_folder(Path("bundle")):
        raise PermissionError(13, "Permission denied", name)


def _wait_for(path: Path) -> None:
    for _ in range(3000):
        if path.exists():
            return
        time.sleep(0.01)
    raise AssertionError(f"{path} does not appear")
