"""axe-core checks each tab: names and roles of controls, contrast, and the structure of the page."""

import json
from pathlib import Path

import pytest

from headwaiter_client import Client
from testbed.chromium import Page
from tests.e2e.playground.conftest import LOADED, OpenSignedOut, OpenTab
from tests.support.tiers import exhaustive

AXE = Path(__file__).with_name("node_modules") / "axe-core" / "axe.min.js"
TEXT = "the bread is fresh"
SIX_TEXTS = "\n".join([TEXT, *["rain falls"] * 5])
# Where axe cannot decide about contrast, which TOO_FAINT decides instead: axe reads no colours of drawings, and takes
# cells for hidden that a table shows once it is scrolled sideways, and single digits for no text.
CONTRAST_UNDECIDED = "svg text, .scroll td, .scroll th"
# axe's findings, without those of CONTRAST_UNDECIDED, and those of elements that the page has replaced since.
FINDINGS = """axe.run(document, { resultTypes: ['violations', 'incomplete'] }).then(({ violations, incomplete }) => {
    const isExcepted = (element) => !element || element.matches('%s');
    const undecided = incomplete.map(({ id, nodes }) => ({ id, nodes: nodes.filter(({ target }) =>
        id !== 'color-contrast' || !isExcepted(document.querySelector(target[0]))) }));
    return [...violations, ...undecided].flatMap(({ id, nodes }) => nodes.map(({ html }) => `${id}: ${html}`));
})"""
# The texts with a contrast below 4.5 to what is behind them: the bar before a number in a batch, otherwise the
# background of the nearest element that has one.
TOO_FAINT = """import('./colours.js').then(({ contrast }) => {
    const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const behind = (text) => {
        if (text.matches('.batch text')) return channels(getComputedStyle(text.previousElementSibling).fill);
        for (let each = text; each; each = each.parentElement) {
            const [red, green, blue, opacity = 1] = channels(getComputedStyle(each).backgroundColor);
            if (opacity > 0) return [red, green, blue];
        }
    };
    const shown = [...document.querySelectorAll('%s')].filter((text) => text.checkVisibility());
    const ink = (text) => channels(getComputedStyle(text)[text.matches('text') ? 'fill' : 'color']).slice(0, 3);
    const faint = shown.filter((text) => !(contrast(ink(text), behind(text)) >= 4.5));
    return [shown.length, faint.map(({ outerHTML }) => outerHTML)];
})"""


@pytest.fixture(scope="session")
def axe() -> str:
    if not AXE.exists():
        pytest.skip("axe-core is missing: run `npm ci` in tests/e2e/playground")
    return AXE.read_text("utf-8")


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
        assert findings(page) == [], tab
        texts, faint = page.evaluate(TOO_FAINT % CONTRAST_UNDECIDED)
        assert texts
        assert faint == [], tab
        assert page.evaluate("document.documentElement.scrollWidth") == width
        if tab == "latency":
            # Times of four digits, which a busy machine has, make the table wider: then it scrolls.
            cells = "document.querySelectorAll('#stages-table td:nth-child(n + 4)')"
            page.evaluate(f"{cells}.forEach(cell => cell.textContent = '88.8')")
        wider = "[...document.querySelectorAll('.scroll')].filter(box => box.scrollWidth > box.clientWidth)"
        assert page.evaluate(f"{wider}.map(box => box.id)") == [], tab


def test_axe_finds_no_violation_in_the_sign_in(axe: str, open_signed_out: OpenSignedOut) -> None:
    page = open_signed_out("models")
    page.evaluate(axe)
    assert findings(page) == []


def findings(page: Page) -> list[str]:
    """Return what axe finds wrong, and what axe cannot decide."""
    # Transitions of colours would be checked half-way.
    page.evaluate("Promise.all(document.getAnimations().map(animation => animation.finished))")
    found: list[str] = page.evaluate(FINDINGS % CONTRAST_UNDECIDED)
    return found
