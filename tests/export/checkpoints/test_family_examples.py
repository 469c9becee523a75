"""The served graph of each family in docs/reference/supported-models.md gives the hidden rows of `transformers`.

The page also lists checkpoints that the export refuses.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from headwaiter_export.checkpoints.families.model_types import FAMILIES, FEATURE_FAMILIES
from tests.support.export.family_examples import EXAMPLES, Example
from tests.support.export.family_table import (
    BEGIN,
    BEGIN_REFUSED,
    DOCUMENT,
    END,
    END_REFUSED,
    families_table,
    refused_table,
)
from tests.support.export.refused_examples import REFUSED, Refused


# Tracing a graph takes seconds. In every run, the served graph of all-MiniLM-L6-v2 is compared.
@pytest.mark.exhaustive
@pytest.mark.usefixtures("runs_graphs")
@pytest.mark.parametrize("example", [pytest.param(each, id=each.label) for each in EXAMPLES])
def test_the_served_graph_of_a_family_equals_transformers(example: Example, tmp_path: Path) -> None:
    assert example.difference(tmp_path) <= 1e-5


def test_each_supported_family_has_an_example_and_a_line_in_the_documentation() -> None:
    supported = {*FAMILIES, *FEATURE_FAMILIES}
    assert {name for example in EXAMPLES for name in example.model_types} == supported
    table = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert table == families_table()


@pytest.mark.usefixtures("runs_graphs")
@pytest.mark.parametrize("example", [pytest.param(each, id=each.label) for each in REFUSED])
def test_a_checkpoint_that_the_page_calls_refused_is_refused(
    example: Refused, tmp_path: Path, refused: Callable[..., None]
) -> None:
    refused(["checkpoint", tmp_path, "--precision", "fp32"], example.save(tmp_path))


def test_the_page_lists_what_is_refused() -> None:
    table = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN_REFUSED)[2].partition(END_REFUSED)[0]
    assert table == refused_table()
