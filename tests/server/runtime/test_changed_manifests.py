"""Each field of a manifest is changed in several ways: the server answers as before, or refuses in one line.

Nothing in a bundle can prove what prompts and labels say, so the answers are those without prompts.
"""

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.descriptor import FieldDescriptor
from numpy.typing import NDArray

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_proto.rules.errors import Failures, InvalidInput, SequenceTooLong
from headwaiter_proto.rules.outputs import read_output
from headwaiter_proto.rules.pooling import normalize_pooled, pool
from headwaiter_proto.rules.token_types import with_types
from headwaiter_server.inputs.tokenizer import BundleTokenizer, TokenizeOptions
from headwaiter_server.requests.threads import finish
from headwaiter_server.runtime.attention_weights import AttentionSelection, AttentionWeightsGraph
from headwaiter_server.runtime.bundle import MANIFEST
from headwaiter_server.runtime.errors import ModelRefused
from headwaiter_server.runtime.model import open_model
from headwaiter_server.runtime.packing import pack
from tests.support.server.bundles import copy

# A path of keys and indices into the JSON of a manifest.
JsonPath = tuple[Any, ...]

_TEXTS = ["The bread is fresh.", "rain"]
_ABSENT = object()
_LARGE = {FieldDescriptor.TYPE_UINT32: 2**32 - 1, FieldDescriptor.TYPE_UINT64: 2**64 - 1}


def _answers(folder: Path) -> dict[str, NDArray[Any]]:
    """Return what a server answers to requests for texts, in several poolings, and for attention weights.

    Requests that the server refuses have no answer.
    """
    model = open_model(folder, "cpu", "auto", 1)
    manifest = model.bundle.manifest
    tokenizer = BundleTokenizer.open_in(model.bundle)
    try:
        tokenized = finish(tokenizer.tokenize(_TEXTS, TokenizeOptions(), Failures(), 999))
    except SequenceTooLong:
        return {}
    sequences = [with_types(each.ids, each.types, manifest) for each in tokenized]
    outputs = model.graph.run(pack(sequences), hidden=True)
    assert outputs.hidden is not None
    rows = np.split(outputs.hidden, [len(sequences[0])])
    answers: dict[str, NDArray[Any]] = {"tokens": np.concatenate(sequences), "hidden": outputs.hidden}
    for pooling in (pb.POOLING_UNSPECIFIED, pb.POOLING_MEAN, pb.POOLING_CLS):
        try:
            output = read_output(pb.OutputOptions(pooled=True, pooling=pooling), manifest)
        except InvalidInput:
            continue
        pooled = outputs.pooled
        if not output.graph_pools:
            pooled = np.stack([pool(part, output.pooling) for part in rows])
        assert pooled is not None
        answers[pb.Pooling.Name(pooling)] = normalize_pooled(
            pooled[:, : output.dimensions], normalized=output.normalized
        )
    if manifest.HasField("attend"):
        selection = AttentionSelection(range(manifest.layers), range(manifest.heads), 0)
        attention = AttentionWeightsGraph.open_in(model.bundle).run(sequences[0], selection)
        assert attention.context is not None
        answers |= {"attention weights": attention.weights, "attention contexts": attention.context}
    return answers


def _answers_or_refusal(folder: Path) -> dict[str, NDArray[Any]] | str:
    try:
        return _answers(folder)
    except ModelRefused as refused:
        return str(refused)


def _changes(field: Any, content: Any, path: JsonPath) -> Iterator[tuple[JsonPath, Any]]:
    """Yield paths into the JSON of a manifest, with the value that replaces the one at the path."""
    yield path, _ABSENT
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        yield path, {"a\nb": "x" * 100_000}
    elif isinstance(content, list):
        yield path, content + content[:1]
        yield path, content[1:]
        if content and field.message_type is not None:
            yield from _changes_within(field.message_type, content[0], (*path, 0))
    elif field.message_type is not None:
        yield from _changes_within(field.message_type, content or {}, path)
    elif field.type == FieldDescriptor.TYPE_BOOL:
        yield path, not content
    elif field.enum_type is not None:
        for value in (*field.enum_type.values_by_number, 99, "NONSENSE"):
            yield path, value
    elif field.type == FieldDescriptor.TYPE_STRING:
        for text in ("", "a\nb", "x" * 100_000, "../other", "\ud800"):
            yield path, text
    else:
        for number in (0, 1, int(float(content or 0)) + 1, -1, 1.5, "NaN", _LARGE.get(field.type, 1e308)):
            yield path, number


def _changes_within(message: Any, content: dict[str, Any], path: JsonPath) -> Iterator[tuple[JsonPath, Any]]:
    for field in message.fields:
        yield from _changes(field, content.get(field.json_name), (*path, field.json_name))


def _changed(manifest: dict[str, Any], path: JsonPath, value: Any) -> dict[str, Any]:
    changed = deepcopy(manifest)
    part: Any = changed
    key: Any
    for key in path[:-1]:
        part = part[key] if isinstance(part, list) else part.setdefault(key, {})
    last: Any = path[-1]
    if value is not _ABSENT:
        part[last] = value
    elif isinstance(part, list) or last in part:
        del part[last]
    return changed


@pytest.fixture(scope="module")
def answers(text_bundle: Path) -> dict[str, NDArray[Any]]:
    return _answers(text_bundle)


@pytest.mark.parametrize("name", [field.name for field in Manifest.DESCRIPTOR.fields])
def test_a_changed_field_changes_no_answer(
    name: str, text_bundle: Path, answers: dict[str, NDArray[Any]], tmp_path: Path
) -> None:
    folder = copy(text_bundle, tmp_path)
    manifest = json.loads((folder / MANIFEST).read_text())
    field: Any = Manifest.DESCRIPTOR.fields_by_name[name]
    changes = list(_changes(field, manifest.get(field.json_name), (field.json_name,)))
    assert len(changes) > 1
    for path, value in changes:
        (folder / MANIFEST).write_text(json.dumps(_changed(manifest, path, value)))
        found = _answers_or_refusal(folder)
        if isinstance(found, str):
            assert "\n" not in found
            assert len(found) < 1000
            continue
        for kind, answer in found.items():
            message = f"{kind} after {path} = {value!r:.80}"
            np.testing.assert_allclose(answer, answers[kind], rtol=1e-5, atol=1e-6, err_msg=message)
