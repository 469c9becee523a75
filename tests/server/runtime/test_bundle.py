"""A bundle is read if it is whole and as it was written, or refused in one sentence that names the file."""

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from headwaiter_proto.manifest_pb2 import File
from headwaiter_server.runtime.bundle import GOLDEN, MANIFEST, PARITY, TOKENIZER, Bundle
from headwaiter_server.runtime.errors import BundleRefused
from tests.server.runtime.bundles import copy, flip_byte, read_manifest, write_manifest

WEIGHTS, GRAPH, ATTEND = "weights.fp32.bin", "packed-cpu.fp32.onnx", "attend.fp32.onnx"


def _refusal(folder: Path) -> str:
    with pytest.raises(BundleRefused) as error:
        Bundle.open(folder)
    sentence = str(error.value)
    assert "\n" not in sentence
    return sentence


def test_a_bundle_is_known_by_the_digest_of_its_manifest(text_bundle: Path) -> None:
    bundle = Bundle.open(text_bundle)
    assert bundle.digest == hashlib.sha256((text_bundle / MANIFEST).read_bytes()).hexdigest()
    assert bundle.manifest == read_manifest(text_bundle)
    assert bundle.parity().graphs[0].graph == GRAPH


@pytest.mark.parametrize(("fixture", "tokens"), [("text_bundle", "input_ids"), ("feature_bundle", "features")])
def test_golden_inputs_are_read_as_the_sequences_that_they_were(
    fixture: str, tokens: str, request: pytest.FixtureRequest
) -> None:
    folder: Path = request.getfixturevalue(fixture)
    golden = Bundle.open(folder).golden()
    with np.load(folder / GOLDEN) as stored:
        assert [len(sequence) for sequence in golden.sequences] == stored["lengths"].tolist()
        np.testing.assert_array_equal(np.concatenate(golden.sequences), stored[tokens])
        np.testing.assert_array_equal(golden.outputs.hidden, stored["hidden"])
        np.testing.assert_array_equal(golden.outputs.pooled, stored["pooled"])


@pytest.mark.parametrize("name", [WEIGHTS, GRAPH, GOLDEN, PARITY, TOKENIZER])
@pytest.mark.parametrize("place", [0, 0.5, 1])
def test_one_flipped_byte_in_any_file_is_damage(text_bundle: Path, tmp_path: Path, name: str, place: float) -> None:
    folder = copy(text_bundle, tmp_path)
    flip_byte(folder / name, place)
    assert _refusal(folder) == (
        f"{folder / name} is damaged (its SHA-256 is not the manifest's): copy or export it again"
    )


def test_a_file_that_was_cut_short_is_damage(text_bundle: Path, tmp_path: Path) -> None:
    folder = copy(text_bundle, tmp_path)
    path = folder / WEIGHTS
    path.write_bytes(path.read_bytes()[:-1])
    assert _refusal(folder).startswith(f"{path} is damaged")


@pytest.mark.parametrize("name", [WEIGHTS, GRAPH, ATTEND, GOLDEN, PARITY, TOKENIZER])
def test_a_missing_file_is_named(text_bundle: Path, tmp_path: Path, name: str) -> None:
    folder = copy(text_bundle, tmp_path)
    (folder / name).unlink()
    assert _refusal(folder) == f"{folder / name} is missing: the bundle is not whole, copy or export it again"


@pytest.mark.parametrize("name", [WEIGHTS, GRAPH, ATTEND, GOLDEN, PARITY, TOKENIZER])
def test_a_file_that_is_needed_and_has_no_checksum_is_named(text_bundle: Path, tmp_path: Path, name: str) -> None:
    folder = copy(text_bundle, tmp_path)
    manifest = read_manifest(folder)
    kept = [file for file in manifest.files if file.name != name]
    del manifest.files[:]
    manifest.files.extend(kept)
    write_manifest(folder, manifest)
    assert _refusal(folder) == f"{folder / MANIFEST} gives no checksum for {name}: export the model again"


def test_a_bundle_made_before_there_was_a_graph_of_attention_weights_is_whole(
    text_bundle: Path, tmp_path: Path
) -> None:
    folder = copy(text_bundle, tmp_path)
    (folder / ATTEND).unlink()
    manifest = read_manifest(folder)
    manifest.ClearField("attend")
    kept = [file for file in manifest.files if file.name != ATTEND]
    del manifest.files[:]
    manifest.files.extend(kept)
    write_manifest(folder, manifest)
    assert not Bundle.open(folder).manifest.HasField("attend")


@pytest.mark.parametrize("name", ["../weights.bin", "/etc/passwd", "sub/weights.bin"])
def test_a_file_outside_the_bundle_is_refused(text_bundle: Path, tmp_path: Path, name: str) -> None:
    folder = copy(text_bundle, tmp_path)
    manifest = read_manifest(folder)
    manifest.files.append(File(name=name))
    write_manifest(folder, manifest)
    assert _refusal(folder) == f"{folder / MANIFEST} names {name!r}, which is outside the bundle"


def test_a_schema_version_of_another_time_is_refused_whatever_else_it_brings(text_bundle: Path, tmp_path: Path) -> None:
    folder = copy(text_bundle, tmp_path)
    about = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**about, "schemaVersion": 2, "adapters": ["x"]}))
    assert _refusal(folder) == (
        f"{folder / MANIFEST} has schema version 2, and this server reads 1: export the model again with this version"
    )


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b'{"schemaVersion": "one"}'])
def test_what_is_no_manifest_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / MANIFEST).write_bytes(content)
    assert _refusal(tmp_path).startswith(f"{tmp_path / MANIFEST} is no manifest that this version can read: ")


@pytest.mark.parametrize("prepare", [lambda path: None, Path.mkdir, Path.touch], ids=["nothing", "empty", "a file"])
def test_without_a_bundle_the_sentence_says_how_to_make_one(tmp_path: Path, prepare: Callable[[Path], None]) -> None:
    folder = tmp_path / "bundle"
    prepare(folder)
    assert re.search(
        rf"there is no bundle at {folder}: make one with headwaiter-export checkpoint FOLDER -o {folder}$",
        _refusal(folder),
    )
