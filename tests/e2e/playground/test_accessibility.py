"""axe-core checks each tab: names and roles of controls, contrast, and the structure of the page."""

from pathlib import Path

import pytest

from headwaiter_client import Client
from tests.e2e.playground.conftest import LOADED, OpenTab

AXE = Path(__file__).with_name("node_modules") / "axe-core" / "axe.min.js"
TEXT = "the bread is fresh"


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
        pytest.param(1280, True, marks=pytest.mark.exhaustive),
        pytest.param(390, False, marks=pytest.mark.exhaustive),
    ],
)
def test_axe_finds_no_violation_and_nothing_is_wider_than_the_screen(
    width: int, dark: bool, axe: str, open_tab: OpenTab, client: Client
) -> None:
    client.encode([TEXT])
    page = open_tab(client, "attention", TEXT, width=width, dark=dark)
    page.evaluate(f"document.querySelector('#similarity-input').value = '{TEXT}\\nrain falls'")
    page.evaluate(axe)
    for tab, loaded in LOADED.items():
        page.click(f"#tab-{tab}")
        if tab == "latency":
            page.choose("#latency-sequences", "2")
            page.click("#latency-send")
        page.wait_for(f"document.querySelector('{loaded}')")
        # Transitions of colours would be checked half-way.
        page.evaluate("Promise.all(document.getAnimations().map(animation => animation.finished))")
        violations = page.evaluate(
            "axe.run(document, { resultTypes: ['violations', 'incomplete'] }).then(({ violations }) => "
            "violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html).join(' ')}`))"
        )
        assert violations == [], tab
        assert page.evaluate("document.documentElement.scrollWidth") == width
