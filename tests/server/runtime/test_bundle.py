"""A complete and unchanged bundle is read; any other bundle is refused with a message that names the file."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from headwaiter_proto.manifest_pb2 import File, Manifest
from headwaiter_server.runtime.bundle import GOLDEN, MANIFEST, PARITY, TOKENIZER, Bundle
from headwaiter_server.runtime.errors import BundleChanged, BundleRefused, NotEnoughMemory
from headwaiter_server.runtime.golden_reader import Golden
from headwaiter_server.runtime.graph import GraphOutputs
from tests.support.server.bundles import copy, flip_byte, read_manifest, write_manifest

WEIGHTS, GRAPH, ATTEND = "weights.fp32.bin", "packed-cpu.fp32.onnx", "attend.fp32.onnx"


def _refusal(folder: Path) -> str:
    with pytest.raises(BundleRefused) as error:
        Bundle.open(folder)
    message = str(error.value)
    assert "\n" not in message
    return message


def test_the_digest_of_a_bundle_is_the_sha_256_of_its_manifest(text_bundle: Path) -> None:
    bundle = Bundle.open(text_bundle)
    assert bundle.digest == hashlib.sha256((text_bundle / MANIFEST).read_bytes()).hexdigest()
    assert bundle.manifest == read_manifest(text_bundle)
    assert bundle.parity().graphs[0].graph == GRAPH


@pytest.mark.usefixtures("runs_graphs", "runs_transformers")
@pytest.mark.parametrize(("fixture", "tokens"), [("text_bundle", "input_ids"), ("feature_bundle", "features")])
def test_golden_inputs_are_split_into_sequences_and_golden_outputs_are_read(
    fixture: str, tokens: str, request: pytest.FixtureRequest
) -> None:
    folder: Path = request.getfixturevalue(fixture)
    golden = Bundle.open(folder).golden()
    with np.load(folder / GOLDEN) as stored:
        assert [len(sequence) for sequence in golden.sequences] == stored["lengths"].tolist()
        np.testing.assert_array_equal(np.concatenate(golden.sequences), stored[tokens])
        np.testing.assert_array_equal(golden.outputs.hidden, stored["hidden"])
        np.testing.assert_array_equal(golden.outputs.pooled, stored["pooled"])


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (partial(flip_byte, position=0), "damaged"),
        (partial(flip_byte, position=0.5), "damaged"),
        (partial(flip_byte, position=1), "damaged"),
        (_truncate, "bytes, and the manifest says"),
        (Path.unlink, "missing"),
    ],
    ids=["first byte", "middle byte", "last byte", "truncated", "missing"],
)
@pytest.mark.parametrize("name", [WEIGHTS, GRAPH, ATTEND, GOLDEN, PARITY, TOKENIZER])
def test_a_damaged_or_missing_file_is_named(
    name: str, damage: Callable[[Path], None], words: str, text_bundle: Path, tmp_path: Path
) -> None:
    folder = copy(text_bundle, tmp_path)
    damage(folder / name)
    message = _refusal(folder)
    assert str(folder / name) in message
    assert words in message


def _unlist(manifest: Manifest, name: str) -> None:
    other_files = [file for file in manifest.files if file.name != name]
    del manifest.files[:]
    manifest.files.extend(other_files)


@pytest.mark.parametrize("name", [WEIGHTS, GRAPH, ATTEND, GOLDEN, PARITY, TOKENIZER])
def test_a_needed_file_without_a_checksum_is_named(text_bundle: Path, tmp_path: Path, name: str) -> None:
    folder = copy(text_bundle, tmp_path)
    manifest = read_manifest(folder)
    _unlist(manifest, name)
    write_manifest(folder, manifest)
    message = _refusal(folder)
    assert str(folder / MANIFEST) in message
    assert name in message
    assert "checksum" in message


def test_an_older_bundle_without_an_attention_weights_graph_is_complete(text_bundle: Path, tmp_path: Path) -> None:
    folder = copy(text_bundle, tmp_path)
    (folder / ATTEND).unlink()
    manifest = read_manifest(folder)
    manifest.ClearField("attend")
    _unlist(manifest, ATTEND)
    write_manifest(folder, manifest)
    assert not Bundle.open(folder).manifest.HasField("attend")


@pytest.mark.parametrize("name", ["../weights.bin", "/etc/passwd", "sub/weights.bin"])
def test_a_file_outside_the_bundle_is_refused(text_bundle: Path, tmp_path: Path, name: str) -> None:
    folder = copy(text_bundle, tmp_path)
    manifest = read_manifest(folder)
    manifest.files.append(File(name=name))
    write_manifest(folder, manifest)
    message = _refusal(folder)
    assert str(folder / MANIFEST) in message
    assert repr(name) in message


def test_another_schema_version_is_refused_even_with_unknown_fields(text_bundle: Path, tmp_path: Path) -> None:
    folder = copy(text_bundle, tmp_path)
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**manifest, "schemaVersion": 3, "adapters": ["x"]}))
    message = _refusal(folder)
    assert str(folder / MANIFEST) in message
    assert "version 3" in message
    assert "versions 1 and 2" in message


def test_a_bundle_of_schema_version_2_is_read(text_bundle: Path, tmp_path: Path) -> None:
    folder = copy(text_bundle, tmp_path)
    manifest = read_manifest(folder)
    manifest.schema_version = 2
    write_manifest(folder, manifest)
    assert Bundle.open(folder).manifest == manifest


def test_fields_of_a_newer_export_are_ignored_if_the_schema_version_is_known(text_bundle: Path, tmp_path: Path) -> None:
    folder = copy(text_bundle, tmp_path)
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**manifest, "adapters": ["x"]}))
    assert Bundle.open(folder).manifest == read_manifest(text_bundle)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b'{"schemaVersion": "one"}'])
def test_a_file_that_is_not_a_manifest_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / MANIFEST).write_bytes(content)
    message = _refusal(tmp_path)
    assert str(tmp_path / MANIFEST) in message
    assert "not a manifest" in message


@pytest.mark.parametrize("prepare", [lambda path: None, Path.mkdir, Path.touch], ids=["nothing", "empty", "a file"])
def test_without_a_bundle_the_message_says_how_to_make_one(tmp_path: Path, prepare: Callable[[Path], None]) -> None:
    folder = tmp_path / "bundle"
    prepare(folder)
    message = _refusal(folder)
    assert f"no bundle at {folder}" in message
    assert message.endswith(f"headwaiter-export checkpoint FOLDER -o {folder}")


def test_a_checkpoint_in_place_of_a_bundle_is_refused_with_the_command_that_exports_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert f"headwaiter-export checkpoint {tmp_path} -o BUNDLE" in _refusal(tmp_path)


def test_a_name_on_a_hub_is_refused_with_the_command_that_serves_it() -> None:
    assert _refusal(Path("owner/name@main")).endswith("headwaiter serve owner/name@main")


def test_an_onnx_file_in_place_of_a_bundle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.touch()
    assert f"headwaiter-export onnx {path} -o BUNDLE" in _refusal(path)


def test_a_private_copy_has_the_checked_files_and_is_gone_after_the_block(text_bundle: Path, tmp_path: Path) -> None:
    bundle = Bundle.open(copy(text_bundle, tmp_path))
    # A file may be replaced by an equal one.
    shutil.copyfile(text_bundle / WEIGHTS, tmp_path / WEIGHTS).replace(bundle.folder / WEIGHTS)
    with bundle.private_copy(GRAPH, WEIGHTS) as private:
        flip_byte(bundle.folder / WEIGHTS)
        names = sorted(path.name for path in private.iterdir())
        assert names == sorted([GRAPH, WEIGHTS])
        assert (private / WEIGHTS).read_bytes() == (text_bundle / WEIGHTS).read_bytes()
    assert not private.exists()


@pytest.mark.parametrize("change", [flip_byte, Path.unlink])
def test_a_file_that_has_changed_since_the_bundle_was_opened_is_not_copied(
    text_bundle: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    bundle = Bundle.open(copy(text_bundle, tmp_path))
    change(bundle.folder / WEIGHTS)
    with pytest.raises(BundleChanged, match=WEIGHTS), bundle.private_copy(GRAPH, WEIGHTS):
        pytest.fail("the block must not run")


def test_without_room_for_the_copies_the_model_is_refused(
    text_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(NotEnoughMemory, match="TMPDIR"):
        Bundle.open(text_bundle).golden()


@pytest.mark.parametrize("hidden_rows", [None, np.array([0, 2, 3, 5])])
def test_golden_inputs_may_be_limited_to_short_sequences(hidden_rows: NDArray[np.int64] | None) -> None:
    rows = np.arange(6)
    stored = rows if hidden_rows is None else rows[hidden_rows]
    # Sequences of the rows 0 and 1, 2 to 4, and 5.
    golden = Golden(np.split(rows, [2, 5]), GraphOutputs(np.array([[0], [1], [2]]), stored[:, None]), hidden_rows)
    short = golden.up_to(2)
    assert [sequence.tolist() for sequence in short.sequences] == [[0, 1], [5]]
    assert short.outputs.pooled is not None
    assert short.outputs.hidden is not None
    assert short.outputs.pooled.tolist() == [[0], [2]]
    kept = np.concatenate(short.sequences)
    expected = kept if short.hidden_rows is None else kept[short.hidden_rows]
    assert short.outputs.hidden[:, 0].tolist() == expected.tolist() == [row for row in stored if row in kept]
    assert golden.up_to(3) is golden


def test_the_copies_of_a_server_that_was_killed_are_removed_and_those_in_use_are_not(
    text_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    copies = ".headwaiter-copies-of-weights-"
    old, young, models = (tmp_path / name for name in (f"{copies}old", f"{copies}young", "headwaiter-models"))
    for folder in (old, young, models):
        folder.mkdir()
        (folder / "weights").write_bytes(b"left")
        if folder is not young:
            os.utime(folder, (0, 0))
    opened = Bundle.open(text_bundle)
    with opened.private_copy() as in_use:
        os.utime(in_use, (0, 0))
        assert not old.exists()
        with opened.private_copy() as other:
            assert {*tmp_path.iterdir()} == {young, models, in_use, other}
    assert {*tmp_path.iterdir()} == {young, models}
