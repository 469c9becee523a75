"""A bundle whose files contradict each other, each with the right checksum, is refused in one line."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.encoder_pb2 import TargetFormat
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_proto.rules.pooling import POOLINGS_OF_GRAPHS
from headwaiter_server.runtime import golden_reader
from headwaiter_server.runtime.attention_weights import AttentionWeightsGraph
from headwaiter_server.runtime.bundle import GOLDEN, PARITY, Bundle
from headwaiter_server.runtime.errors import BundleRefused, ModelRefused, ToleranceExceeded
from headwaiter_server.runtime.graph import EncoderGraph
from headwaiter_server.runtime.graph_file import check_graph
from headwaiter_server.runtime.model import open_model
from tests.support.server.bundles import copy, read_manifest, sign, write_manifest

WEIGHTS, GRAPH, ATTEND = "weights.fp32.bin", "packed-cpu.fp32.onnx", "attend.fp32.onnx"


@pytest.fixture
def folder(text_bundle: Path, tmp_path: Path) -> Path:
    """A copy of the bundle "tiny-text", for a test to change."""
    return copy(text_bundle, tmp_path)


def _check_refusal(folder: Path, *facts: str, kind: type[ModelRefused] = BundleRefused) -> None:
    """Check that the server refuses a bundle in one line with these facts."""
    with pytest.raises(kind) as error:
        open_model(folder, "cpu", "auto", 1)
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 1000
    assert [fact for fact in facts if fact not in message] == []


def test_a_truncated_graph_is_refused(folder: Path) -> None:
    (folder / GRAPH).write_bytes((folder / GRAPH).read_bytes()[:-100])
    sign(folder, [GRAPH])
    _check_refusal(folder, str(folder / GRAPH))


@pytest.mark.parametrize(
    ("names", "fact", "kind"),
    [
        ([GRAPH, WEIGHTS], "features of width 6", BundleRefused),
        ([GRAPH], "features of width 6", BundleRefused),
        ([WEIGHTS], "", ModelRefused),
        ([GOLDEN], "input_ids", BundleRefused),
    ],
)
def test_files_of_another_model_are_refused(
    names: list[str], fact: str, kind: type[ModelRefused], folder: Path, feature_bundle: Path
) -> None:
    for name in names:
        (folder / name).write_bytes((feature_bundle / name).read_bytes())
    sign(folder, names)
    _check_refusal(folder, str(folder), fact, kind=kind)


@pytest.mark.parametrize(
    ("field", "number"), [("max_tokens", 65), ("vocabulary_size", 72), ("max_tokens", 64), ("vocabulary_size", 71)]
)
@pytest.mark.parametrize("name", ["packed-cuda.fp32.onnx", "packed-cuda.fp16.onnx", "packed-cpu.int8.onnx"])
def test_a_table_of_too_few_rows_is_found_without_running_the_graph(
    name: str, field: str, number: int, text_bundle: Path
) -> None:
    manifest = read_manifest(text_bundle)
    may_be = number <= getattr(manifest, field)
    setattr(manifest, field, number)
    widths = {"input_ids": 0, "positions": 0}, {"hidden": 32, "pooled": 32}
    graph = cast(EncoderGraph, SimpleNamespace(widths=lambda: widths))
    content = (text_bundle / name).read_bytes()
    if may_be:
        check_graph(graph, content, manifest)
    else:
        with pytest.raises(BundleRefused, match=rf"{number - 1} rows in the table of .* {field} .* {number}"):
            check_graph(graph, content, manifest)


def _arrays(folder: Path) -> dict[str, Any]:
    with np.load(folder / GOLDEN) as stored:
        return dict(stored)


def _keep(kept: Callable[[NDArray[np.int32]], NDArray[np.bool_]]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a change that keeps the sequences of some lengths."""

    def change(arrays: dict[str, Any]) -> dict[str, Any]:
        sequences = kept(arrays["lengths"])
        rows = np.repeat(sequences, arrays["lengths"])
        by_row = {name: arrays[name][rows] for name in ("input_ids", "hidden")}
        return by_row | {name: arrays[name][sequences] for name in ("lengths", "pooled")}

    return change


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        (_keep(lambda lengths: lengths < 64), "max_tokens"),
        (_keep(lambda lengths: lengths > 1), "min_tokens"),
        (_keep(lambda lengths: lengths > 64), "cannot be read"),
        (lambda arrays: {name: array for name, array in arrays.items() if name != "pooled"}, "'pooled'"),
        (lambda arrays: {name: array for name, array in arrays.items() if name != "input_ids"}, "input_ids"),
        (lambda arrays: arrays | {"pooled": np.array([None] * 32)}, "cannot be read"),
        (lambda arrays: arrays | {"hidden": arrays["hidden"][:, :7]}, "hidden"),
        (lambda arrays: arrays | {"hidden": arrays["hidden"][:-1]}, "hidden"),
        (lambda arrays: arrays | {"lengths": arrays["lengths"] * 2}, "ids"),
    ],
)  # fmt: skip
def test_golden_inputs_that_contradict_the_manifest_are_refused(
    change: Callable[[dict[str, Any]], dict[str, Any]], fact: str, folder: Path
) -> None:
    np.savez(folder / GOLDEN, **change(_arrays(folder)))
    sign(folder, [GOLDEN])
    _check_refusal(folder, str(folder / GOLDEN), fact)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda arrays: arrays | {"hidden": arrays["hidden"] * np.nan}, BundleRefused),
        (lambda arrays: arrays | {"input_ids": (arrays["input_ids"] + 1) % 71}, ToleranceExceeded),
        (lambda arrays: arrays | {"input_ids": arrays["input_ids"] + 71}, BundleRefused),
    ],
)
def test_golden_inputs_that_the_graph_does_not_answer_are_refused(
    change: Callable[[dict[str, Any]], dict[str, Any]], kind: type[ModelRefused], folder: Path
) -> None:
    np.savez(folder / GOLDEN, **change(_arrays(folder)))
    sign(folder, [GOLDEN])
    _check_refusal(folder, str(folder), kind=kind)


def _inflate_header(path: Path) -> None:
    """Claim a terabyte in the header of an array."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    shape = f"({len(_arrays(path.parent)['hidden'])}, 32)".encode()
    claimed = b"(9999999999, 32)"
    end = b", }"
    spaces = b" " * (len(claimed) - len(shape))
    members["hidden.npy"] = members["hidden.npy"].replace(shape + end + spaces, claimed + end)
    assert claimed in members["hidden.npy"]
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


@pytest.mark.parametrize(
    "damage",
    [
        _inflate_header,
        lambda path: path.write_bytes(b"no archive"),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[::-1]),
        lambda path: path.write_bytes(path.read_bytes()[:200] + path.read_bytes()[-22:]),
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
    ],
)
def test_a_damaged_golden_file_is_refused(damage: Callable[[Path], Any], folder: Path) -> None:
    damage(folder / GOLDEN)
    sign(folder, [GOLDEN])
    _check_refusal(folder, str(folder / GOLDEN), "cannot be read")


def test_a_golden_file_of_too_many_bytes_is_refused_before_it_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(golden_reader, "_MAX_BYTES", 10**8)
    np.savez_compressed(folder / GOLDEN, **{**_arrays(folder), "hidden": np.zeros((10**6, 32), np.float32)})
    sign(folder, [GOLDEN])
    _check_refusal(folder, str(folder / GOLDEN), "100,000,000")


@pytest.mark.parametrize(
    "content", [b"", b"[", b"\xff", b'{"graphs": 7}', b"[" * 100_000, b'{"graphs": "' + b"x" * 10**6]
)
def test_a_malformed_parity_file_is_refused(content: bytes, folder: Path) -> None:
    (folder / PARITY).write_bytes(content)
    sign(folder, [PARITY])
    _check_refusal(folder, str(folder / PARITY))


def _swap_weights(manifest: Manifest) -> None:
    manifest.graphs[0].weights_file, manifest.graphs[0].file = manifest.graphs[0].file, manifest.graphs[0].weights_file


_OF_GRAPHS = [pb.Pooling.Name(each) for each in POOLINGS_OF_GRAPHS]
# For each field, values that contradict the graphs, or that no export writes.
WRONG: dict[str, list[Any]] = {
    "max_tokens": [1000, 65, 0],
    "vocabulary_size": [10**6, 72, 0],
    "feature_width": [6],
    "width": [7, 0],
    "hidden_width": [7],
    "heads": [0],
    "layers": [0],
    "pooling": ["POOLING_CLS", "POOLING_NONE", "POOLING_WEIGHTED_MEAN", *_OF_GRAPHS, 99],
    "normalized": [False],
    "min_tokens": [2, 65],
    "max_text_tokens": [65],
    "token_types": [2],
    "default_prompt": ["other"],
    "name": ["a\nb", "x" * 100_000, " "],
    "takes_pairs": [True],
    "sparse": [True],
}


def _set(field: str, value: Any) -> Callable[[Manifest], None]:
    return lambda manifest: setattr(manifest, field, value)


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        *((_set(field, value), field) for field, values in WRONG.items() for value in values),
        (lambda manifest: manifest.head.labels.append("label"), "head"),
        (lambda manifest: manifest.target.CopyFrom(TargetFormat(start_id=99)), "token id 99"),
        (lambda manifest: manifest.target.CopyFrom(TargetFormat(start_id=5)), "golden"),
        (lambda manifest: manifest.prompts.add(name="short", max_tokens=65), "prompt"),
        (lambda manifest: manifest.prompts.add(name="long", expanded_tokens=65), "prompt"),
        (lambda manifest: manifest.prompts.add(name="filled", expansion_id=10**6), "expansion_id"),
        (_swap_weights, "cannot run"),
    ],
)
def test_a_manifest_that_is_wrong_is_refused(change: Callable[[Manifest], None], fact: str, folder: Path) -> None:
    manifest = read_manifest(folder)
    change(manifest)
    write_manifest(folder, manifest)
    _check_refusal(folder, str(folder), fact)


@pytest.mark.parametrize(("field", "number"), [("layers", 1), ("layers", 2**32 - 1), ("heads", 3)])
def test_attention_weights_of_other_layers_or_heads_are_refused(field: str, number: int, folder: Path) -> None:
    manifest = read_manifest(folder)
    setattr(manifest, field, number)
    write_manifest(folder, manifest)
    with pytest.raises(BundleRefused, match=f"{field} {number}") as refused:
        AttentionWeightsGraph.open_in(Bundle.open(folder))
    assert str(folder / ATTEND) in str(refused.value)


@pytest.mark.parametrize(
    ("field", "value", "fact"),
    [
        ("feature_width", 7, "feature_width"),
        ("feature_width", 0, "vocabulary_size"),
        ("class_row", True, "class_row"),
        ("prefix_rows", 2, "prefix_rows"),
    ],
)
def test_a_wrong_form_of_features_is_refused(
    field: str, value: int, fact: str, feature_bundle: Path, tmp_path: Path
) -> None:
    folder = copy(feature_bundle, tmp_path)
    manifest = read_manifest(folder)
    setattr(manifest, field, value)
    write_manifest(folder, manifest)
    _check_refusal(folder, fact)


def test_a_manifest_nested_too_deeply_is_refused(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    text = json.dumps({**manifest, "unknown": 0}).replace('"unknown": 0', '"unknown": ' + "[" * 100_000 + "]" * 100_000)
    (folder / "manifest.json").write_text(text)
    _check_refusal(folder, "manifest.json")
