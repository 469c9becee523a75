"""axe-core checks each tab: names and roles of controls, contrast, and the structure of the page."""

import json

import pytest

from headwaiter_client import Client
from tests.e2e.playground.conftest import LOADED, OpenSignedOut, OpenTab
from tests.support.playground.accessibility import findings, problems
from tests.support.tiers import exhaustive

TEXT = "the bread is fresh"
SIX_TEXTS = "\n".join([TEXT, *["rain falls"] * 5])


@pytest.mark.parametrize(
    ("width", "dark"),
    [
        (1280, False),
        (390, True),
        *exhaustive((1280, True)),
        *exhaustive((390, False)),
    ],
)
def test_axe_finds_no_violation_and_nothing_is_wider_than_the_screen(
    width: int, dark: bool, axe: str, open_tab: OpenTab, client: Client
) -> None:
    client.encode([TEXT])
    page = open_tab(client, "attention", TEXT, width=width, dark=dark)
    page.evaluate(f"document.querySelector('#similarity-input').value = {json.dumps(SIX_TEXTS)}")
    page.evaluate(axe)
    for tab, loaded in LOADED.items():
        page.click(f"#tab-{tab}")
        if tab == "latency":
            page.choose("#latency-sequences", "2")
            page.click("#latency-send")
        page.wait_for(f"document.querySelector('{loaded}')")
        assert problems(page, width) == [], tab
        if tab == "latency":
            widths = "['latency-input', 'latency-percentiles'].map(id => document.getElementById(id).offsetWidth)"
            assert len(set(page.evaluate(widths))) == 1
            # Times of four digits, which a busy machine has, make the table wider: then it scrolls.
            cells = "document.querySelectorAll('#stages-table td:nth-child(n + 4)')"
            page.evaluate(f"{cells}.forEach(cell => cell.textContent = '88.8')")
        wider = "[...document.querySelectorAll('.scroll')].filter(box => box.scrollWidth > box.clientWidth)"
        assert page.evaluate(f"{wider}.map(box => box.id)") == [], tab


def test_axe_finds_no_violation_in_the_sign_in(axe: str, open_signed_out: OpenSignedOut) -> None:
    page = open_signed_out("models")
    page.evaluate(axe)
    assert findings(page) == []
