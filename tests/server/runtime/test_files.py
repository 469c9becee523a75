"""Small files are read only if they are files and small."""

import os
from pathlib import Path

import pytest

from headwaiter_server.runtime.bundle import Bundle
from headwaiter_server.runtime.errors import BundleRefused
from headwaiter_server.runtime.files import read_small_file


def test_a_file_of_at_most_the_limit_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_small_file(tmp_path / "file", 5) == b"12345"
    with pytest.raises(OSError, match="4 bytes"):
        read_small_file(tmp_path / "file", 4)


def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path(os.devnull), tmp_path / "missing"):
        with pytest.raises(OSError):  # noqa: PT011
            read_small_file(path, 5)


def test_a_bundle_whose_manifest_is_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "manifest.json")
    with pytest.raises(BundleRefused, match="not a regular file"):
        Bundle.open(tmp_path)
