"""What to load and to unload, as a table: no healthy version gives way to a mere absence, error or damage."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from headwaiter_server.models.changes import changes
from headwaiter_server.models.folders import FoundModel, FoundVersion


def bundle(version: int, identity: str = "", files: str = "") -> FoundVersion:
    return FoundVersion("a", version, Path(f"a/{version}"), None, (identity,), (files,))


def folder(*bundles: FoundVersion, unreadable: Mapping[int | None, str] | None = None) -> FoundModel:
    return FoundModel({each.version: each for each in bundles}, unreadable or {})


ONE, TWO, THREE = bundle(1), bundle(2), bundle(3)
OTHER = {"b": FoundModel()}
GONE = {("a", 2)}


class Case(NamedTuple):
    """What the scan found, what is known before, and what follows; `missing` names version 2 as missing."""

    found: Mapping[str, FoundModel]
    load: Sequence[FoundVersion] = ()
    served: FoundVersion | None = TWO
    unloads: bool = False
    missing: bool = False
    known: Mapping[str, Any] = {}
    offer: FoundVersion | None = None


REPAIRED, OTHER_TWO, DAMAGED = bundle(3, files="repaired"), bundle(2, "other"), bundle(2, "damaged")
LOCKED, BEFORE = "Permission denied", {"missing_before": GONE}
CASES = {
    "a new model is loaded, the highest version first": Case({"a": folder(ONE, TWO)}, [TWO, ONE], served=None),
    "what is served stays": Case({"a": folder(ONE, TWO)}),
    "a higher version is loaded": Case({"a": folder(ONE, TWO, THREE)}, [THREE]),
    "a version that failed is not tried again": Case({"a": folder(TWO, THREE)}, known={"failed": {THREE}}),
    "a version that failed is tried again with other files": Case(
        {"a": folder(TWO, REPAIRED)}, [REPAIRED], known={"failed": {THREE}}
    ),
    "another manifest of the served version is loaded": Case({"a": folder(ONE, OTHER_TWO)}, [OTHER_TWO]),
    "a damaged replacement of the served version leads to no lower version": Case(
        {"a": folder(ONE, DAMAGED)}, known={"failed": {DAMAGED}}
    ),
    "another file in the served folder changes nothing": Case({"a": folder(bundle(2, files="README"))}),
    "an unreadable served version stays": Case({"a": folder(ONE, unreadable={2: LOCKED})}, known=BEFORE),
    "an unreadable lower version changes nothing": Case({"a": folder(TWO, unreadable={1: "No such file"})}),
    "an unreadable model stays": Case({"a": folder(unreadable={None: LOCKED})}, known=BEFORE),
    "an empty folder of models changes nothing": Case({}, known=BEFORE),
    "a model that is missing once stays": Case(OTHER, missing=True),
    "a model that is missing twice is unloaded": Case(OTHER, unloads=True, missing=True, known=BEFORE),
    "a version that is missing once stays": Case({"a": folder(ONE)}, missing=True),
    "a version that is missing twice gives way to a lower one": Case(
        {"a": folder(ONE)}, [ONE], missing=True, known=BEFORE
    ),
    "a version that is missing twice stays if no other one can be served": Case(
        {"a": folder(ONE)}, missing=True, known={**BEFORE, "failed": {ONE}}
    ),
    "an unwanted model is unloaded and not loaded": Case(
        {"a": folder(TWO, THREE)}, unloads=True, known={"unwanted": {"a"}}
    ),
    "a model that is loaded on demand is offered": Case(
        {"a": folder(ONE, TWO)}, served=None, known={"on_demand": {ONE, TWO}}, offer=TWO
    ),
    "a model that a request needs is loaded": Case(
        {"a": folder(ONE, TWO)}, [TWO, ONE], served=None, known={"on_demand": {ONE, TWO}, "wanted": "a"}, offer=TWO
    ),
    "a version that failed is not offered": Case(
        {"a": folder(ONE, TWO)}, served=None, known={"on_demand": {ONE, TWO}, "failed": {TWO}}, offer=ONE
    ),
    "a new version of a loaded model is loaded, and does not wait for a request": Case(
        {"a": folder(TWO, THREE)}, [THREE], known={"on_demand": {TWO, THREE}}
    ),
    "a pinned model is loaded": Case({"a": folder(TWO)}, [TWO], served=None, known={"on_demand": {ONE}}),
    "an unwanted model is not offered": Case(
        {"a": folder(TWO)}, served=None, known={"on_demand": {TWO}, "unwanted": {"a"}}
    ),
    "an unwanted model is unloaded although the folder is empty": Case({}, unloads=True, known={"unwanted": {"a"}}),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_healthy_version_gives_way_only_to(case: Case) -> None:
    result = changes(case.found, {} if case.served is None else {"a": case.served}, **case.known)
    assert list(result.load.get("a", ())) == list(case.load)
    assert result.unload == ({"a"} if case.unloads else set())
    assert result.offer.get("a") == case.offer
    assert result.missing == (GONE if case.missing else set())
