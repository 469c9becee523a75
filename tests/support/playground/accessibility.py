"""What axe-core, and checks of what axe cannot decide, find wrong in a page of the playground."""

import pytest

from testbed.chromium import Page
from tests.support.documents import ROOT

_AXE = ROOT / "tests" / "e2e" / "playground" / "node_modules" / "axe-core" / "axe.min.js"
# Where axe cannot decide about contrast, which _TOO_FAINT decides instead: axe reads no colours of drawings, and takes
# cells for hidden that a table shows once it is scrolled sideways, single digits for no text, and no file's name.
_CONTRAST_UNDECIDED = "svg text, .scroll td, .scroll th, input[type=file]"
# axe's findings, without those of _CONTRAST_UNDECIDED, and those of elements that the page has replaced since. The
# order of headings is undecided only if a heading was replaced while axe read the page.
_FINDINGS = """axe.run(document, { resultTypes: ['violations', 'incomplete'] }).then(({ violations, incomplete }) => {
    const isExcepted = (element) => !element || element.matches('%s');
    const undecided = incomplete.filter(({ id }) => id !== 'heading-order').map(({ id, nodes }) => ({ id, nodes:
        nodes.filter(({ target }) => id !== 'color-contrast' || !isExcepted(document.querySelector(target[0]))) }));
    return [...violations, ...undecided].flatMap(({ id, nodes }) => nodes.map(({ html }) => `${id}: ${html}`));
})"""
# The texts with a contrast below 4.5 to what is behind them: the bar before a number in a batch, otherwise the
# background of the nearest element that has one.
_TOO_FAINT = """import('./colours.js').then(({ contrast }) => {
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


def read_axe() -> str:
    """Return the script of axe-core, or skip the test if axe-core is not installed."""
    if not _AXE.exists():
        pytest.skip("axe-core is missing: run `npm ci` in tests/e2e/playground")
    return _AXE.read_text("utf-8")


def problems(page: Page, width: int) -> list[str]:
    """Return what axe, which the page has read, finds wrong, and which texts are too faint or beyond the screen."""
    texts, faint = page.evaluate(_TOO_FAINT % _CONTRAST_UNDECIDED)
    found = [*findings(page), *(f"too faint: {text}" for text in faint)]
    if not texts:
        found.append("the page has no text in a table or a drawing")
    if page.evaluate("document.documentElement.scrollWidth") != width:
        found.append("the page is wider than the screen")
    return found


def findings(page: Page) -> list[str]:
    """Return what axe finds wrong, and what axe cannot decide."""
    # Transitions of colours would be checked half-way.
    page.evaluate("Promise.all(document.getAnimations().map(animation => animation.finished))")
    found: list[str] = page.evaluate(_FINDINGS % _CONTRAST_UNDECIDED)
    return found
