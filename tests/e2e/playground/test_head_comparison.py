"""Two heads side by side in the tab Attention: the same token, masks and temperature, and the numbers of the client."""

import numpy as np
import pytest
from numpy.typing import NDArray

from headwaiter_client import Client, FakeEncoder
from headwaiter_proto.rules.errors import InvalidInput
from testbed.chromium import Browser, Page
from tests.e2e.playground.conftest import OpenTab, Served, check_link_and_reload, next_frame, table
from tests.support.playground.accessibility import problems
from tests.support.playground.changing_server import ChangingServer

TEXT = "the bread is fresh please"


def open_comparison(open_tab: OpenTab, served: Served, width: int = 1280, dark: bool = False) -> Page:
    """Open the tab, and compare the shown head with head 2 of layer 1."""
    page = open_tab(served, "attention", TEXT, width=width, dark=dark)
    page.wait_for("document.querySelector('#context svg')")
    page.choose("#second-layer", "1")
    page.choose("#second-head", "2")
    page.wait_for("document.querySelector('#second-lines svg')")
    return page


def columns(page: Page) -> NDArray[np.float64]:
    """Return the weights of the first and of the second head."""
    next_frame(page)
    return np.array([[float(cell) for cell in row[2:]] for row in table(page, "#second-table")]).T


def test_the_second_head_has_the_same_token_and_the_same_masks(open_tab: OpenTab, client: Client) -> None:
    page = open_comparison(open_tab, client)
    layer, head = (int(page.evaluate(f"document.querySelector('#{name}').value")) for name in ("layer", "head"))
    attention = client.attend(TEXT).weights.astype(np.float64)
    exact = attention[[layer, 1], [head, 2]]
    page.click("#chips button:nth-child(4)")
    np.testing.assert_allclose(columns(page), exact[:, 3], rtol=0, atol=0.51e-4)
    assert page.texts("#second-lines-title") == ["Layer 1, head 2"]
    assert page.texts("#second-lines .weight") == [f"{weight:.4f}" for weight in exact[1, 3]]
    page.click("#causal")
    page.choose("#temperature", "0.5")
    masked = np.where(np.arange(len(exact[0])) > 3, 0, exact[:, 3] ** 2)
    np.testing.assert_allclose(columns(page), masked / masked.sum(1, keepdims=True), rtol=0, atol=0.51e-4)
    page.click("#reset")
    # Another text has the same second head, and none is shown any more once the user chooses none.
    page.type_text("#attention-input", "rain falls")
    page.wait_for("document.querySelectorAll('#second-table tbody tr').length === 4")
    expected = client.attend("rain falls").weights[1, 2]
    shown = columns(page)[1]
    assert any(np.allclose(shown, row, rtol=0, atol=0.51e-4) for row in expected)
    page.choose("#second-head", "")
    assert not page.evaluate("document.querySelector('#second-result').checkVisibility()")


def test_a_link_holds_the_second_head(open_tab: OpenTab, chromium: Browser, client: Client) -> None:
    page = open_comparison(open_tab, client)
    page.wait_for("location.hash.includes('secondLayer=1&secondHead=2')")
    check_link_and_reload(chromium, page, "#second-table, #first-lines-title, #second-lines-title")
    page.choose("#second-head", "3")
    page.wait_for("location.hash.includes('secondHead=3')")
    page.evaluate("history.back()")
    page.wait_for("document.querySelector('#second-lines-title').textContent === 'Layer 1, head 2'")
    page.choose("#second-head", "")
    page.wait_for("!location.hash.includes('second')")


def test_without_a_second_head_its_error_is_gone(open_tab: OpenTab) -> None:
    server = ChangingServer(fake=FakeEncoder())
    page = open_comparison(open_tab, server)
    server.errors["Attend"] = InvalidInput("the head is broken: choose another one")
    page.choose("#second-head", "1")
    page.wait_for("document.querySelector('#second-error').textContent === 'the head is broken: choose another one'")
    page.choose("#second-head", "")
    assert page.texts("#second-error") == [""]
    page.errors.clear()  # The browser itself logs the refusal.


@pytest.mark.parametrize(("width", "dark"), [(1280, True), (390, False)])
def test_the_comparison_is_accessible(width: int, dark: bool, axe: str, open_tab: OpenTab, client: Client) -> None:
    page = open_comparison(open_tab, client, width, dark)
    page.evaluate(axe)
    assert problems(page, width) == []
