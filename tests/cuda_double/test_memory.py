"""Device memory stays what it is after the warm-up, and a deleted session returns all of it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.cuda_double import build
from tests.support.cuda_double.environment import double_in, run_on
from tests.support.shared_folders import SharedFolders

if reason := build.why_unavailable():
    pytest.skip(reason, allow_module_level=True)

MODELS = ("bert", "causal", "t5", "deberta")
MEMORY_GIB = (24, 80)
ALLOWED_GROWTH = 1.05


@pytest.fixture(scope="module")
def found(forms: Mapping[str, Path], shared_folders: SharedFolders) -> Mapping[str, Any]:
    def measure(folder: Path) -> None:
        folder.mkdir()
        double = double_in(folder, devices=len(MEMORY_GIB), memory_gib=MEMORY_GIB)
        found = run_on(double, "memory", *(f"{name}={forms[name]}" for name in MODELS))
        (folder / "found.json").write_text(json.dumps(found))

    values: Mapping[str, Any] = json.loads((shared_folders.get("cuda-memory", measure) / "found.json").read_text())
    return values


@pytest.mark.parametrize("device", range(len(MEMORY_GIB)), ids=[f"{gib} GiB" for gib in MEMORY_GIB])
@pytest.mark.parametrize("model", MODELS)
def test_memory_does_not_grow_after_the_warm_up(found: Mapping[str, Any], model: str, device: int) -> None:
    memory = found[f"{model} {device}"]
    assert memory["used"] <= ALLOWED_GROWTH * memory["warm"]


def test_memory_does_not_grow_after_the_warm_up_with_cuda_graphs(found: Mapping[str, Any]) -> None:
    memory = found["graphs"]
    assert memory["graphs"] >= 50
    assert memory["used"] <= ALLOWED_GROWTH * memory["warm"]


@pytest.mark.parametrize(
    "case",
    [
        # A causal model whose longest sequence alone fills the token budget.
        "long sequences",
        # DeBERTa: the token budget of 1,024 ends the batch of the warm-up long before the limit of cells does.
        "few tokens",
    ],
)
def test_the_most_padded_batch_fits_in_the_memory_of_the_warm_up(found: Mapping[str, Any], case: str) -> None:
    assert found[case]["used"] <= ALLOWED_GROWTH * found[case]["warm"]


def test_a_deleted_session_returns_all_memory(found: Mapping[str, Any]) -> None:
    assert [found[f"{model} {device}"]["deleted"] for model in MODELS for device in range(len(MEMORY_GIB))] == [0] * 8


def test_memory_does_not_grow_when_a_session_is_opened_and_deleted_20_times(found: Mapping[str, Any]) -> None:
    assert found["cycles"] == [0] * 20
