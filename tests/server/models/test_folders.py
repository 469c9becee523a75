"""A scan finds what is in a folder of models, and takes nothing for a model that would break a log or a reply."""

import os
from pathlib import Path

import pytest

from headwaiter_server.models.folders import scan


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
