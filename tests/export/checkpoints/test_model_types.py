"""docs/reference/model-types.md lists each type of transformers that has a base model, and the totals are right."""

from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

from tests.support.export.type_table import BEGIN_TOTALS, END_TOTALS, PAGE, table_rows, totals


def test_the_page_lists_each_type_and_no_wrong_results() -> None:
    rows = table_rows()
    assert rows.keys() == MODEL_MAPPING_NAMES.keys()
    assert "WRONG" not in rows.values()


def test_the_page_has_the_totals_of_the_table() -> None:
    written = PAGE.read_text(encoding="utf-8").partition(BEGIN_TOTALS)[2].partition(END_TOTALS)[0]
    assert written == totals([*table_rows().values()])
