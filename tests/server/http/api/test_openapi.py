"""The description of a body accepts what the server accepts, and the description of a reply fits replies."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from headwaiter_proto.rules.errors import InvalidInput
from headwaiter_server.http.api.fields import Field, leaves
from headwaiter_server.http.api.openapi import document, page
from headwaiter_server.http.api.routes import TABLE
from tests.server.http.api.questions import ask, operations, posts

DOCUMENT = document()
SCALARS: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    1.5,
    2**31,
    "",
    " ",
    "a",
    "float",
    "END",
    "token_embed",
    "right",
    "bulk",
]
LISTS: list[Any] = [
    [],
    [""],
    ["a"],
    [1],
    [[1], [2]],
    ["a", 1],
    ["a", "b"],
    [["a"], ["b", "c"]],
    [["a"]],
    [["a", "b"]],
    ["float"],
]
OBJECTS: list[Any] = [{}, [{"text": "a"}], [{"text": 1}], {"truncate": True}, {"sentences": ["a"]}]
VALUES = [*SCALARS, *LISTS, *OBJECTS, {"sentences": ["a"], "source_sentence": "b"}]


def schema(path: str) -> Any:
    return DOCUMENT["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]


def fields(path: str) -> list[Field]:
    return [each for operation in operations(path) for each in leaves(operation.fields)]


def accepted(path: str, body: Any) -> bool:
    try:
        ask(path, body)
    except InvalidInput as error:
        # A schema cannot say that two fields contradict each other, or belong to each other.
        assume(not any(words in str(error) for words in ("contradict", "belongs to", "text_1 has")))
        return False
    return True


@pytest.mark.parametrize("path", sorted(posts()))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(data=st.data())
def test_the_schema_of_a_body_accepts_what_is_read(path: str, data: st.DataObject) -> None:
    operation = data.draw(st.sampled_from(operations(path)))
    values = st.sampled_from(VALUES)
    names = [each.name for each in operation.fields]
    required = {"input": ["a"], "inputs": ["a"], "query": "a", "documents": ["a"], "texts": ["a"]}
    body: dict[str, Any] = {each.name: required.get(each.name, "a") for each in operation.fields if each.required}
    body |= data.draw(st.dictionaries(st.sampled_from([*names, "unknown"]), values, max_size=3))
    validator = Draft202012Validator(schema(path))
    assert validator.is_valid(body) == accepted(path, body), body


def test_the_document_is_json_and_describes_each_path_with_its_prefix() -> None:
    paths = json.loads(json.dumps(DOCUMENT))["paths"]
    for entry in TABLE:
        assert entry.verb.lower() in paths[entry.path]
    assert "/models/{model}/embed" in paths
    assert "/models/{model}" in paths
    for path, item in paths.items():
        (described,) = item.values()
        assert ("{model}" in path) == bool(described.get("parameters"))
        assert {"200", "400", "401", "429"} <= described["responses"].keys()


def test_the_page_names_each_path_and_field_and_loads_nothing() -> None:
    text = page().decode()
    for entry in TABLE:
        assert f"<h2>{entry.verb} {entry.path}</h2>" in text
    for path in posts():
        assert all(f"<code>{each.name}</code>" in text for each in fields(path) if not each.fields)
    assert "http://" not in text
    assert "https://" not in text
    assert "<script" not in text


def test_each_field_says_what_it_does() -> None:
    for path in posts():
        assert [each.name for each in fields(path) if not each.about and not each.fields] == []
