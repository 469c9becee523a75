"""The description of a body accepts what the server accepts, and the description of a reply fits replies."""

import json
import re
from collections import defaultdict
from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from headwaiter_proto.rules.errors import InvalidInput
from headwaiter_server.http.api.openapi import document, page
from headwaiter_server.http.api.routes import TABLE, Entry
from headwaiter_server.requests.fields import Field, leaves
from tests.support.server.questions import ask, operations, posts

DOCUMENT = document()
SCALARS: list[Any] = [None, True, False, 0, 1, -1, 1.5, 3.0, 2**31, "", " ", "a", "float", "END", "token_embed", "bulk"]
SCALARS += ["classify", "text", "native", "float32"]
LISTS: list[Any] = [[], [""], ["a"], [1], [[1], [2]], ["a", 1], ["a", "b"], [["a"], ["b", "c"]], [["a"]], [["a"], "b"]]
LISTS += [[["a", "b"]], ["float"], ["float", "base64"], [{"text": "a"}], [{"text": 1}], [1, True], [1.5], [None]]
LISTS += [[[1], "a"], [["a"], [None]]]
SIMILAR: dict[str, Any] = {"sentences": ["a"], "source_sentence": "b"}
OBJECTS: list[Any] = [{}, {"truncate": True}, {"truncate": 1}, {"x": 1}, {"sentences": ["a"]}, {**SIMILAR, "x": 1}]
VALUES = [*SCALARS, *LISTS, *OBJECTS, SIMILAR]


def schema(path: str) -> Any:
    return DOCUMENT["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]


def fields(entry: Entry) -> list[Field]:
    return [each for does in entry.does for each in leaves(does.fields or ())]


def refusal(path: str, body: Any) -> InvalidInput | None:
    """Return the error of a body that is not read."""
    try:
        ask(path, body)
    except InvalidInput as error:
        return error
    return None


def describable(error: InvalidInput | None) -> bool:
    """Return whether a schema can say what is wrong: not that fields contradict each other, or belong to each other."""
    return not any(words in str(error) for words in ("contradict", "belongs to"))


def needed(path: str) -> list[dict[str, Any]]:
    """Return a valid body for each operation of a path, with nothing but the required fields."""
    values = {"documents": ["a"], "texts": ["a"], "ids": [1], "tokens": [1]}
    bodies = [
        {
            each.name: each.kind.schema.get("enum", [values.get(each.name, "a")])[0]
            for each in operation.fields
            if each.required
        }
        for operation in operations(path)
    ]
    return [{**body, "inputs": SIMILAR} if path == "/similarity" else body for body in bodies]


# A path that only has other names for its operations reads the same bodies by the same functions.
@pytest.mark.parametrize("path", sorted({tuple(map(id, operations(path))): path for path in posts()}.values()))
def test_the_schema_of_each_value_of_each_field_accepts_what_is_read_and_an_error_names_the_field(path: str) -> None:
    validator = Draft202012Validator(schema(path))
    names = {"unknown", *(each.name for operation in operations(path) for each in operation.fields)}
    for body, meant in zip(needed(path), operations(path), strict=True):
        assert refusal(path, body) is None
        own = {"unknown", *(each.name for each in meant.fields)}
        for name, value in product(sorted(names), VALUES):
            tried = {**body, name: value}
            error = refusal(path, tried)
            is_read = error is None
            if describable(error):
                assert validator.is_valid(tried) == is_read, tried
                # A field of another operation may lead to that one, and in an object one field may be wrong.
                if error and name in own and not isinstance(value, dict):
                    assert error.field == name, tried


@pytest.mark.parametrize("path", sorted(posts()))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(data=st.data())
def test_the_schema_of_a_body_accepts_what_is_read(path: str, data: st.DataObject) -> None:
    body = data.draw(st.sampled_from(needed(path)))
    names = [each.name for operation in operations(path) for each in operation.fields]
    body |= data.draw(st.dictionaries(st.sampled_from([*names, "unknown"]), st.sampled_from(VALUES), max_size=3))
    error = refusal(path, body)
    assume(describable(error))
    assert Draft202012Validator(schema(path)).is_valid(body) == (error is None), body


def test_paths_of_the_same_operations_have_the_same_schema() -> None:
    schemas: dict[tuple[int, ...], list[Any]] = defaultdict(list)
    for path in posts():
        schemas[tuple(map(id, operations(path)))].append(schema(path))
    assert max(map(len, schemas.values())) > 1
    for first, *others in schemas.values():
        assert all(other == first for other in others)


def test_the_document_is_json_and_describes_each_path_with_its_prefix() -> None:
    paths = json.loads(json.dumps(DOCUMENT))["paths"]
    for entry in TABLE:
        assert entry.verb.lower() in paths[entry.path]
    for path in ("/models/{model}/embed", "/models/{model}", "/v2/models/{model}/versions/{version}/infer"):
        assert path in paths
    for path, item in paths.items():
        (described,) = item.values()
        assert [each["name"] for each in described.get("parameters", [])] == re.findall(r"{(\w+)}", path)
        assert {"200", "400", "401", "429"} <= described["responses"].keys()


def test_the_page_names_each_path_and_field_and_loads_nothing() -> None:
    text = page().decode()
    for entry in TABLE:
        assert f"<h2>{entry.verb} {entry.path}</h2>" in text
        assert [each.name for each in fields(entry) if f"{each.name}</code>" not in text] == []
    for name in ("inputs.sentences", "inputs[].parameters.binary_data_size", "parameters.pair_truncation"):
        assert f"<code>{name}</code>" in text
    assert "<td>error, left, right</td>" in text
    assert "http://" not in text
    assert "https://" not in text
    assert "<script" not in text


def test_each_field_says_what_it_does() -> None:
    for entry in TABLE:
        assert [each.name for each in fields(entry) if not each.about] == []
