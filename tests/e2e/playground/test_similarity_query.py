"""A query against the list of texts in the tab Similarity: the order and the cosines are those of the client."""

import csv
import io

import numpy as np
import pytest

from headwaiter_client import Client
from testbed.chromium import Page
from tests.e2e.playground.conftest import OpenTab, table
from tests.support.playground.accessibility import problems

TEXTS = ["the bread is fresh", "rain falls on stone", "a table for two please", "= the rain"]
QUERY = "bread on the table"


def open_query(open_tab: OpenTab, client: Client, width: int = 1280, dark: bool = False) -> Page:
    page = open_tab(client, "similarity", "\n".join(TEXTS), width=width, dark=dark)
    page.wait_for("document.querySelector('.cosines')")
    page.type_text("#similarity-query", QUERY)
    page.wait_for("document.querySelector('#query-ranking td')")
    return page


def test_the_texts_are_sorted_by_their_cosines_with_the_query(open_tab: OpenTab, client: Client) -> None:
    page = open_query(open_tab, client)
    # The model has these two prompts.
    (query,) = client.encode([QUERY], prompt="query").pooled.astype(np.float64)
    cosines = client.encode(TEXTS, prompt="passage").pooled.astype(np.float64) @ query
    order = np.argsort(-cosines)
    rows = table(page, "#query-ranking")
    assert [row[0] for row in rows] == [TEXTS[index] for index in order]
    np.testing.assert_allclose([float(row[1]) for row in rows], cosines[order], rtol=0, atol=0.51e-4)
    assert "“query”; of the texts: “passage”" in page.texts("#query-ranking caption")[0]
    page.evaluate(
        "window.files = []; URL.createObjectURL = blob => { files.push(blob); return 'blob:kept'; };"
        "HTMLAnchorElement.prototype.click = () => {}; undefined"
    )
    page.click("#query-csv")
    head, *lines = csv.reader(io.StringIO(page.evaluate("files[0].text()")))
    assert head == ["rank", "query", "text", "cosine"]
    shown = [text if text != "= the rain" else "'= the rain" for text in (TEXTS[index] for index in order)]
    assert [line[:3] for line in lines] == [[str(rank), QUERY, text] for rank, text in enumerate(shown, start=1)]
    np.testing.assert_allclose([float(line[3]) for line in lines], cosines[order], rtol=0, atol=1e-6)
    # Another list of texts is sorted anew; without a query there is no ranking.
    page.type_text("#similarity-input", "fresh bread")
    page.wait_for("document.querySelectorAll('#query-ranking tbody tr').length === 1")
    page.evaluate("document.querySelector('#similarity-query').select(); document.execCommand('delete')")
    page.wait_for("document.querySelector('#query-result').hidden")


@pytest.mark.parametrize(("width", "dark"), [(1280, True), (390, False)])
def test_the_query_is_accessible(width: int, dark: bool, axe: str, open_tab: OpenTab, client: Client) -> None:
    page = open_query(open_tab, client, width, dark)
    page.evaluate(axe)
    assert problems(page, width) == []
