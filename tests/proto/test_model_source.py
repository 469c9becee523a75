"""A name on a hub is told from the path of a folder and of an ONNX file."""

from pathlib import Path

import pytest

from headwaiter_proto.model_source import HubName, is_onnx


@pytest.mark.parametrize(
    ("text", "name", "revision"),
    [
        ("sentence-transformers/all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2", None),
        ("BAAI/bge-m3@main", "BAAI/bge-m3", "main"),
        ("a/b.c_d@refs/pr/4", "a/b.c_d", "refs/pr/4"),
    ],
)
def test_a_name_may_have_a_revision(text: str, name: str, revision: str | None) -> None:
    parsed = HubName.parse(text)
    assert parsed == HubName(name, revision)
    assert str(parsed) == text
    assert parsed.model == name.split("/")[1]


@pytest.mark.parametrize(
    "text", ["", "model", "./a/b", "../b", "/a/b", "~/b", "a/b/c", "a/", "a/b@", "a b/c", "a/m.onnx"]
)
def test_other_paths_are_no_names(text: str) -> None:
    assert HubName.parse(text) is None


def test_a_folder_comes_before_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert HubName.parse("owner/name") is not None
    Path("owner/name").mkdir(parents=True)
    assert HubName.parse("owner/name") is None


def test_an_onnx_file_is_known_by_its_name() -> None:
    assert is_onnx("folder/model.onnx")
    assert not is_onnx("folder/onnx")
