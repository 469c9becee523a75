"""A bundle with new checksums and wrong content is refused in one line, and its graphs read no unlisted file."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.encoder_pb2 import TargetFormat
from headwaiter_proto.manifest_pb2 import LOWERING_PACKED_CPU, LOWERING_PACKED_CUDA, LOWERING_PORTABLE, Manifest
from headwaiter_proto.rules.pooling import POOLINGS_OF_GRAPHS
from headwaiter_server.runtime.bundle import GOLDEN, PARITY
from headwaiter_server.runtime.errors import BundleRefused
from headwaiter_server.runtime.model import open_model
from tests.support.server.bundles import copy, read_manifest, sign, write_manifest

_TWO_WEIGHTS = pb.Head(labels=["one", "two"], function=pb.SCORE_FUNCTION_RELU, per_token=True)
WEIGHTS, GRAPH, PORTABLE, ATTEND = "weights.fp32.bin", "packed-cpu.fp32.onnx", "portable.fp32.onnx", "attend.fp32.onnx"


@pytest.fixture
def folder(text_bundle: Path, tmp_path: Path) -> Path:
    """A copy of the bundle "tiny-text", for a test to change."""
    return copy(text_bundle, tmp_path)


def _check_refusal(folder: Path, *facts: str) -> None:
    """Check that the server refuses a bundle in one line with these facts."""
    with pytest.raises(BundleRefused) as error:
        open_model(folder, "cpu", "auto", 1)
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 1000
    assert [fact for fact in facts if fact not in message] == []


def _change_graph(folder: Path, name: str, change: Callable[[onnx.ModelProto], None]) -> None:
    graph = onnx.load(folder / name, load_external_data=False)
    change(graph)
    (folder / name).write_bytes(graph.SerializeToString())
    sign(folder, [name])


def _external(graph: onnx.ModelProto) -> onnx.TensorProto:
    return next(each for each in graph.graph.initializer if each.external_data)


def _set_entry(key: str, value: str) -> Callable[[onnx.ModelProto], None]:
    def change(graph: onnx.ModelProto) -> None:
        next(entry for entry in _external(graph).external_data if entry.key == key).value = value

    return change


@pytest.mark.parametrize(
    ("name", "location"),
    [
        *((name, "other.bin") for name in (GRAPH, PORTABLE, ATTEND)),
        *((GRAPH, location) for location in ("../other.bin", "/tmp/other.bin", "./weights.fp32.bin", "", GOLDEN)),
        (GRAPH, "*/_ORT_MEM_ADDR_/*"),
    ],
)
def test_weights_in_another_file_than_the_manifest_lists_are_refused(name: str, location: str, folder: Path) -> None:
    (folder / "other.bin").write_bytes((folder / WEIGHTS).read_bytes())
    _change_graph(folder, name, _set_entry("location", location))
    _check_refusal(folder, str(folder / name), "encoder.embedding.tokens.weight", repr(location), WEIGHTS)


@pytest.mark.parametrize(
    ("key", "value"),
    [("offset", "999999999"), ("offset", "-64"), ("offset", "9" * 400), ("length", "999999999"), ("length", "x")],
)
def test_weights_outside_their_file_are_refused(key: str, value: str, folder: Path) -> None:
    _change_graph(folder, PORTABLE, _set_entry(key, value))
    _check_refusal(folder, str(folder / PORTABLE), f"outside {WEIGHTS}")


def _inflate_external(graph: onnx.ModelProto) -> None:
    _external(graph).dims[0] *= 10**6


def _inflate_inline(graph: onnx.ModelProto) -> None:
    next(each for each in graph.graph.initializer if each.dims and not each.external_data).dims[0] = 10**12


def _negative(graph: onnx.ModelProto) -> None:
    _external(graph).dims[0] = -1


def _in_an_attribute(graph: onnx.ModelProto) -> None:
    graph.graph.node.append(onnx.helper.make_node("Constant", [], ["c"], value=_external(graph)))
    graph.graph.node[-1].attribute[0].t.external_data[0].value = "other.bin"


def _in_a_branch(graph: onnx.ModelProto) -> None:
    branch = onnx.helper.make_graph([], "branch", [], [], [_external(graph)])
    branch.initializer[0].external_data[0].value = "other.bin"
    graph.graph.node.append(onnx.helper.make_node("If", ["x"], ["y"], then_branch=branch, else_branch=branch))


def _in_a_function(graph: onnx.ModelProto) -> None:
    node = onnx.helper.make_node("Constant", [], ["c"], value=_external(graph))
    graph.functions.append(onnx.helper.make_function("d", "f", [], ["c"], [node], []))


def _sparse(graph: onnx.ModelProto) -> None:
    graph.graph.sparse_initializer.add().dims.append(10**12)


def _other_input(graph: onnx.ModelProto) -> None:
    graph.graph.input.append(onnx.helper.make_tensor_value_info("secret", 1, [1]))


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        (_inflate_external, "shape [71000000, 32]"),
        (_inflate_inline, "shape [1000000000000"),
        (_negative, "shape [-1, 32]"),
        (_in_an_attribute, "'other.bin'"),
        (_in_a_branch, "'other.bin'"),
        (_in_a_function, "functions"),
        (_sparse, "sparse_initializers"),
        (_other_input, "'secret'"),
    ],
)
def test_a_graph_with_parts_that_no_export_writes_is_refused(
    change: Callable[[onnx.ModelProto], None], fact: str, folder: Path
) -> None:
    _change_graph(folder, PORTABLE, change)
    _check_refusal(folder, str(folder / PORTABLE), fact)


@pytest.mark.parametrize("name", [GRAPH, ATTEND])
def test_a_truncated_graph_is_refused(name: str, folder: Path) -> None:
    (folder / name).write_bytes((folder / name).read_bytes()[:-100])
    sign(folder, [name])
    _check_refusal(folder, str(folder / name))


def test_an_oversized_graph_is_refused_before_it_is_parsed(folder: Path) -> None:
    (folder / GRAPH).write_bytes(b"\x0a\x00" * (5 << 20))
    sign(folder, [GRAPH])
    _check_refusal(folder, "8,388,608 bytes")


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
        (_keep(lambda lengths: np.arange(len(lengths)) == 0), "1 sequences"),
        (_keep(lambda lengths: lengths < 64), "max_tokens"),
        (_keep(lambda lengths: lengths > 1), "min_tokens"),
        (lambda arrays: arrays | {"other": arrays["lengths"]}, "'other'"),
        (lambda arrays: {name: array for name, array in arrays.items() if name != "pooled"}, "['hidden', 'input_ids"),
        (lambda arrays: arrays | {"pooled": np.array([None] * 32)}, "object"),
        (lambda arrays: arrays | {"pooled": arrays["pooled"].astype(np.float64)}, "pooled of float64"),
        (lambda arrays: arrays | {"hidden": arrays["hidden"][:, :7]}, "hidden of float32"),
        (lambda arrays: arrays | {"lengths": -arrays["lengths"]}, "lengths"),
        (lambda arrays: arrays | {"lengths": arrays["lengths"] * 2}, "input_ids of int64"),
        (lambda arrays: arrays | {"input_ids": arrays["input_ids"] - 1}, "-1 to"),
        (lambda arrays: arrays | {"input_ids": arrays["input_ids"] + 71}, "0 to 70"),
        (lambda arrays: arrays | {"hidden": arrays["hidden"] * np.nan}, "NaN"),
        (lambda arrays: arrays | {"hidden_rows": np.zeros(len(arrays["hidden"]), np.int64)}, "hidden_rows"),
    ],
)  # fmt: skip
def test_golden_inputs_that_could_reveal_nothing_or_contradict_the_manifest_are_refused(
    change: Callable[[dict[str, Any]], dict[str, Any]], fact: str, folder: Path
) -> None:
    np.savez(folder / GOLDEN, **change(_arrays(folder)))
    sign(folder, [GOLDEN])
    _check_refusal(folder, str(folder / GOLDEN), fact)


def _deflate(path: Path) -> None:
    np.savez_compressed(path, **{**_arrays(path.parent), "hidden": np.zeros((10**6, 32), np.float32)})


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


def _many_members(path: Path) -> None:
    with zipfile.ZipFile(path, "a") as archive:
        for number in range(1000):
            archive.writestr(f"{number}.npy", b"")


@pytest.mark.parametrize(
    ("damage", "fact"),
    [
        (_deflate, "compressed"),
        (_inflate_header, "cannot be read"),
        (_many_members, "too many arrays"),
        (lambda path: path.write_bytes(b"no archive"), "numpy.savez"),
        (lambda path: path.write_bytes(b""), "numpy.savez"),
        (lambda path: path.write_bytes(path.read_bytes()[:200] + path.read_bytes()[-22:]), "cannot be read"),
    ],
)
def test_a_golden_file_of_another_form_is_refused_before_its_arrays_are_read(
    damage: Callable[[Path], None], fact: str, folder: Path
) -> None:
    damage(folder / GOLDEN)
    sign(folder, [GOLDEN])
    _check_refusal(folder, str(folder / GOLDEN), fact)


@pytest.mark.parametrize(
    "content", [b"", b"[", b"\xff", b'{"graphs": 7}', b"[" * 100_000, b'{"graphs": "' + b"x" * 10**6]
)
def test_a_malformed_parity_file_is_refused(content: bytes, folder: Path) -> None:
    (folder / PARITY).write_bytes(content)
    sign(folder, [PARITY])
    _check_refusal(folder, str(folder / PARITY))


def _weigh_tokens(manifest: Manifest, unweighted_ids: list[int]) -> None:
    manifest.head.CopyFrom(pb.Head(labels=["weight"], function=pb.SCORE_FUNCTION_RELU, per_token=True))
    manifest.unweighted_ids.extend(unweighted_ids)


def _pool_without_prompts(manifest: Manifest) -> None:
    manifest.pooling_skips_prompt = manifest.fixed_pooling = True


def _swap_weights(manifest: Manifest) -> None:
    manifest.graphs[0].weights_file, manifest.graphs[0].file = manifest.graphs[0].file, manifest.graphs[0].weights_file


_OF_GRAPHS = [pb.Pooling.Name(each) for each in POOLINGS_OF_GRAPHS]
# For each field, values that contradict the graphs or no export writes.
LIES: dict[str, list[Any]] = {
    "max_tokens": [1000, 65],
    "vocabulary_size": [10**6, 72],
    "feature_width": [6],
    "width": [7],
    "hidden_width": [7],
    "heads": [3, 0],
    "layers": [2**32 - 1],
    "pooling": ["POOLING_CLS", "POOLING_NONE", "POOLING_WEIGHTED_MEAN", *_OF_GRAPHS, 99],
    "normalized": [False],
    "min_tokens": [2, 65],
    "max_text_tokens": [65],
    "token_types": [2],
    "prefix_rows": [2],
    "class_row": [True],
    "default_prompt": ["other"],
    "name": ["a\nb", "x" * 100_000, " "],
    "takes_pairs": [True],
    "fixed_length": [True],
}


def _set(field: str, value: Any) -> Callable[[Manifest], None]:
    return lambda manifest: setattr(manifest, field, value)


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        *((_set(field, value), field) for field, values in LIES.items() for value in values),
        (lambda manifest: setattr(manifest.largest_magnitude, "name", "a\nb"), "largest_magnitude.name"),
        (lambda manifest: setattr(manifest.largest_magnitude, "value", float("nan")), "largest_magnitude.value"),
        (lambda manifest: manifest.head.labels.append("label"), "head"),
        (lambda manifest: manifest.target.CopyFrom(TargetFormat(start_id=3)), "target"),
        (lambda manifest: manifest.prompts.add(name="short", max_tokens=65), "prompt"),
        (lambda manifest: manifest.prompts.add(name="long", expanded_tokens=65), "prompt"),
        (lambda manifest: manifest.prompts.add(name="both", expanded_tokens=9, max_tokens=8), "prompt"),
        (lambda manifest: manifest.prompts.add(name="filled", expansion_id=10**6), "expansion_id"),
        (lambda manifest: manifest.head.CopyFrom(_TWO_WEIGHTS), "weighs tokens"),
        (lambda manifest: manifest.unweighted_ids.append(0), "unweighted_ids"),
        (lambda manifest: _weigh_tokens(manifest, [10**6]), "unweighted_ids"),
        (lambda manifest: _weigh_tokens(manifest, [1] * 65), "unweighted_ids"),
        (lambda manifest: _pool_without_prompts(manifest), "pooling_skips_prompt"),
        (lambda manifest: setattr(manifest.graphs[0], "lowering", "LOWERING_ATTEND"), "lowering"),
        (lambda manifest: setattr(manifest.graphs[0], "precision", 99), "precision"),
        (lambda manifest: setattr(manifest.graphs[1], "file", GRAPH), "graphs"),
        (lambda manifest: manifest.files.append(manifest.files[0]), "files"),
        (_swap_weights, "weights"),
    ],
)
def test_a_manifest_that_lies_is_refused(change: Callable[[Manifest], None], fact: str, folder: Path) -> None:
    manifest = read_manifest(folder)
    change(manifest)
    write_manifest(folder, manifest)
    _check_refusal(folder, str(folder), fact)


_LOWERINGS = {"cpu": LOWERING_PACKED_CPU, "cuda": LOWERING_PACKED_CUDA, "portable": LOWERING_PORTABLE}


@pytest.mark.parametrize(
    ("lowering", "field", "number"),
    [
        ("cpu", "layers", 1_000_000), ("cpu", "layers", 1), ("cpu", "heads", 3),
        ("cuda", "layers", 1_000_000), ("cuda", "heads", 3), ("portable", "layers", 3),
    ],
)  # fmt: skip
def test_wrong_layers_and_heads_are_refused_without_the_graph_behind_attend(
    lowering: str, field: str, number: int, folder: Path
) -> None:
    manifest = read_manifest(folder)
    manifest.ClearField("attend")
    graphs = [graph for graph in manifest.graphs if graph.lowering == _LOWERINGS[lowering]]
    del manifest.graphs[:]
    manifest.graphs.extend(graphs)
    setattr(manifest, field, number)
    write_manifest(folder, manifest)
    _check_refusal(folder, str(folder / graphs[0].file), field[:-1], str(number))


@pytest.mark.parametrize("pooling", [pb.POOLING_CLS, pb.POOLING_LAST])
def test_fixed_pooling_hides_no_other_pooling(pooling: pb.Pooling, folder: Path) -> None:
    manifest = read_manifest(folder)
    manifest.pooling, manifest.fixed_pooling = pooling, True
    write_manifest(folder, manifest)
    _check_refusal(folder, str(folder / GOLDEN), "POOLING_MEAN")


def test_sparse_vectors_have_a_number_for_each_token_id(folder: Path) -> None:
    manifest = read_manifest(folder)
    manifest.sparse = manifest.fixed_pooling = True
    write_manifest(folder, manifest)
    _check_refusal(folder, "sparse", "vocabulary_size")


@pytest.mark.parametrize(("feature_width", "fact"), [(7, "feature_width"), (0, "vocabulary_size")])
def test_a_wrong_width_of_features_is_refused(
    feature_width: int, fact: str, feature_bundle: Path, tmp_path: Path
) -> None:
    folder = copy(feature_bundle, tmp_path)
    manifest = read_manifest(folder)
    manifest.feature_width = feature_width
    write_manifest(folder, manifest)
    _check_refusal(folder, fact)


def test_a_manifest_nested_too_deeply_is_refused(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    text = json.dumps({**manifest, "unknown": 0}).replace('"unknown": 0', '"unknown": ' + "[" * 100_000 + "]" * 100_000)
    (folder / "manifest.json").write_text(text)
    _check_refusal(folder, "manifest.json")
