"""The page while things change: models are replaced and removed, the server is slow or away, the user clicks on."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from headwaiter_client import Client, FakeEncoder
from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import InvalidInput, Starting
from testbed.chromium import Browser, Page
from tests.e2e.playground.conftest import OpenTab, next_frame, page_server, show_token
from tests.support.playground.changing_server import ChangingServer

TEXT = "the bread is fresh please"
# Marks a text on the screen that no visitor should see.
PROGRAM_ERROR = "Cannot read"


def fake(value: float, model: str = "fake", **options: Any) -> FakeEncoder:
    """Return a model whose context vectors consist of one number."""
    return FakeEncoder(model=model, vectors=lambda _: np.full(8, value), **options)


def cost(launch_s: float) -> pb.BatchCost:
    """Return the cost of batches."""
    return pb.BatchCost(launch_s=launch_s, token_s=1e-5, cell_s=1e-8)


def wait_for_vector(page: Page, value: float) -> None:
    numbers = "document.querySelector('#context-numbers').textContent"
    page.wait_for(f"{numbers} === '{f'{value:.4f}' * 8}'")


def open_attention(open_tab: OpenTab, server: ChangingServer) -> Page:
    page = open_tab(server, "attention", TEXT)
    show_token(page)
    return page


def errors(page: Page) -> list[str]:
    """Return the errors that the page shows."""
    return page.texts(".error:not([hidden], :empty)")


def forgive_refusals(page: Page) -> None:
    """Take the refused calls, which the browser itself logs, from the errors of the page."""
    page.errors[:] = [error for error in page.errors if not error.startswith("Failed to load resource")]


@pytest.mark.parametrize("heads", [4, 2])
def test_after_a_swap_everything_on_the_page_is_of_the_new_version(heads: int, open_tab: OpenTab) -> None:
    server = ChangingServer(fake=fake(1.0, heads=4))
    page = open_attention(open_tab, server)
    page.click("#heads button:nth-child(4)")
    wait_for_vector(page, 1.0)
    assert "version 1" in page.texts("#model-summary")[0]
    server.models["fake"] = (fake(2.0, heads=heads), "2")
    page.click("#chips button:nth-child(4)")
    wait_for_vector(page, 2.0)
    assert "version 2" in page.texts("#model-summary")[0]
    assert page.evaluate("document.querySelector('#attention-result').checkVisibility()")
    assert len(page.texts("#heads button")) == 2 * heads
    assert len(page.texts("#head option")) == heads
    # The chosen token stays; so does the head, if the new version has it.
    assert page.texts("#chips [aria-pressed=true] bdi") == ["is"]
    assert f"token 3 “is”, layer 0, head {3 if heads == 4 else 0}" in page.texts("#context-title")[0]
    assert errors(page) == []
    forgive_refusals(page)


def test_a_title_never_stands_over_the_vector_of_another_token(open_tab: OpenTab) -> None:
    server = ChangingServer(fake=FakeEncoder())
    page = open_attention(open_tab, server)
    server.delays_s["Attend"] = 0.8
    page.click("#chips button:nth-child(5)")
    page.wait_for("document.querySelector('#lines-title').textContent.includes('token 4')")
    assert "token 1" in page.texts("#context-title")[0]
    assert "Computing" in page.texts("#context-status")[0]
    assert page.evaluate("document.querySelector('#context-card').ariaBusy") == "true"
    page.wait_for("document.querySelector('#context-title').textContent.includes('token 4')")
    assert page.texts("#context-status") == [""]
    assert page.evaluate("document.querySelector('#context-card').ariaBusy") == "false"
    server.errors["Attend"] = InvalidInput("the token is broken: choose another one")
    page.click("#chips button:nth-child(3)")
    page.wait_for("document.querySelector('#context-card').textContent.includes('the token is broken')")
    assert page.evaluate("document.querySelectorAll('#context svg').length") == 0
    assert page.texts("#context-title") == ["Context vector"]
    assert page.texts("#context-numbers") == [""]
    forgive_refusals(page)


def type_a_text(page: Page) -> None:
    page.type_text("#attention-input", "rain falls")


def choose_a_layer(page: Page) -> None:
    page.choose("#layer", "1")


def make_dark(page: Page) -> None:
    page.click("#tab-models")
    page.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        (type_a_text, "document.querySelectorAll('#chips button').length === 4"),
        (choose_a_layer, "document.querySelector('#lines-title').textContent.includes('layer 1')"),
        (make_dark, "document.querySelector('#chips button').style.backgroundColor !== window.light"),
    ],
)
def test_what_changes_while_another_tab_is_shown_is_drawn_on_return(
    change: Callable[[Page], None], shown: str, open_tab: OpenTab
) -> None:
    server = ChangingServer(fake=FakeEncoder())
    page = open_attention(open_tab, server)
    page.evaluate("window.light = document.querySelector('#chips button').style.backgroundColor")
    server.delays_s["Attend"] = 0.3
    before = server.count("Attend")
    change(page)
    page.click("#tab-models")
    # The replies that are on their way arrive in the other tab.
    page.evaluate("new Promise(done => setTimeout(done, 1200))")
    assert server.count("Attend") <= before + 2
    page.click("#tab-attention")
    page.wait_for(shown)
    page.wait_for("document.querySelector('#attention-result').ariaBusy !== 'true'")
    page.wait_for("document.querySelector('#context svg')")
    next_frame(page)
    for drawing in ("#lines svg", "#map", "#context svg"):
        assert page.evaluate(f"document.querySelector('{drawing}').getBoundingClientRect().width") > 100, drawing


@pytest.mark.parametrize(
    ("change", "value", "tokens"),
    [
        (lambda page: page.choose("#model", "two"), 2.0, 7),
        (lambda page: page.type_text("#attention-input", "bread"), 1.0, 3),
    ],
)
def test_a_late_reply_does_not_pass_for_the_newest(
    change: Callable[[Page], None], value: float, tokens: int, open_tab: OpenTab
) -> None:
    server = ChangingServer(one=fake(1.0, "one"), two=fake(2.0, "two"))
    page = open_attention(open_tab, server)
    server.delays_s["Attend"] = 1.5
    page.choose("#layer", "1")
    change(page)
    page.click("#tab-models")
    page.evaluate("new Promise(done => setTimeout(done, 2500))")
    server.delays_s.clear()
    page.click("#tab-attention")
    page.wait_for(f"document.querySelectorAll('#chips button').length === {tokens}")
    wait_for_vector(page, value)


def test_requests_made_in_another_tab_are_in_the_tab_of_latency(open_tab: OpenTab, client: Client) -> None:
    page = open_tab(client, "latency")
    page.choose("#latency-requests", "1")
    page.choose("#latency-sequences", "2")
    page.click("#latency-send")
    page.wait_for("document.querySelectorAll('#stages-table tbody tr').length === 1")
    page.click("#tab-models")
    page.evaluate("document.querySelector('#attention-input').value = 'bread'")
    page.click("#tab-attention")
    page.wait_for("document.querySelector('#context svg')")
    page.click("#tab-latency")
    page.wait_for("document.querySelectorAll('#stages-table tbody tr').length >= 3")


def test_the_cost_is_that_of_the_chosen_model_after_a_change_in_another_tab(open_tab: OpenTab) -> None:
    server = ChangingServer(one=FakeEncoder(model="one"), two=FakeEncoder(model="two", max_tokens=64))
    for name, seconds in (("one", 0.001), ("two", 0.002)):
        server.descriptions[name].execution.cost.CopyFrom(cost(seconds))
    page = open_tab(server, "cost")
    page.wait_for("document.querySelector('#cost-table tbody tr:last-child th')?.textContent === '512'")
    page.click("#tab-models")
    page.choose("#model", "two")
    page.wait_for("document.querySelector('#model-cards article')")
    page.click("#tab-cost")
    page.wait_for("document.querySelector('#cost-table tbody tr:last-child th')?.textContent === '64'")


@contextmanager
def opened(chromium: Browser, server: ChangingServer, tab: str = "attention") -> Iterator[Page]:
    """Open a tab of a server at once, also of one that does not answer yet."""
    with Client(transport=server) as client, page_server(client) as served:
        page = chromium.open(f"{served.url}#{tab}")
        try:
            yield page
        finally:
            page.close()
        forgive_refusals(page)
        assert page.errors == []


@pytest.mark.parametrize("tab", ["attention", "similarity", "cost", "models"])
def test_a_page_that_was_opened_while_the_server_starts_recovers(tab: str, chromium: Browser) -> None:
    server = ChangingServer(fake=FakeEncoder())
    server.descriptions["fake"].execution.cost.CopyFrom(cost(0.001))
    starting = Starting("the server is starting: wait", retry_after_s=1.0)
    server.errors = {"ListModels": starting, "GetModel": starting}
    with opened(chromium, server, tab) as page:
        page.wait_for("document.querySelector('main').textContent.includes('the server is starting')")
        if tab in ("attention", "similarity"):
            page.type_text(f"#{tab}-input", "rain falls")
            page.evaluate("new Promise(done => setTimeout(done, 600))")
        assert PROGRAM_ERROR not in page.texts("main")[0]
        server.errors = {}
        loaded = {"attention": "#context svg", "similarity": ".cosines", "cost": "#cost-chart svg"}
        page.wait_for(f"document.querySelector('{loaded.get(tab, '#model-cards article')}')")
        page.wait_for("document.querySelectorAll('.error:not([hidden], :empty)').length === 0")


@pytest.mark.parametrize(("tab", "method"), [("attention", "Attend"), ("similarity", "Encode")])
def test_a_tab_whose_load_failed_tries_again_when_it_is_shown(tab: str, method: str, open_tab: OpenTab) -> None:
    server = ChangingServer(fake=FakeEncoder())
    server.errors[method] = InvalidInput("the model is out of order: repair it")
    page = open_tab(server, tab, TEXT)
    page.wait_for(f"document.querySelector('#{tab}-error').textContent.includes('out of order')")
    server.errors = {}
    page.click("#tab-models")
    page.click(f"#tab-{tab}")
    page.wait_for(f"!document.querySelector('#{tab}-result').hidden")
    assert errors(page) == []
    forgive_refusals(page)


def test_a_removed_model_gives_way_to_another_one_and_new_models_are_listed(open_tab: OpenTab) -> None:
    server = ChangingServer(one=fake(1.0, "one", layers=1), two=fake(2.0, "two", layers=2))
    page = open_attention(open_tab, server)
    page.choose("#model", "two")
    wait_for_vector(page, 2.0)
    del server.models["two"]
    server.models["three"] = (fake(3.0, "three", layers=3), "1")
    wait_for_vector(page, 1.0)
    assert page.texts("#model option") == ["one", "three"]
    assert page.evaluate("document.querySelector('#model').value") == "one"
    assert "1 layer" in page.texts("#model-summary")[0]
    assert page.texts("#page-note") == ["two is no longer served. The page now shows one."]
    page.choose("#model", "three")
    wait_for_vector(page, 3.0)
    assert page.evaluate("document.querySelector('#page-note').hidden")


@pytest.mark.parametrize(
    ("names", "opened_name"), [(["b", "a"], "b"), (["image", "b", "a"], "b"), (["image"], "image")]
)
def test_the_page_opens_the_first_model_that_takes_text(names: list[str], opened_name: str, open_tab: OpenTab) -> None:
    # A server lists its default model first.
    fakes = {
        name: FakeEncoder(model=name, vocabulary_size=0 if name == "image" else 30522, feature_width=6)
        for name in names
    }
    page = open_tab(ChangingServer(**fakes), "attention")
    assert page.evaluate("document.querySelector('#model').value") == opened_name
    assert page.texts("#model option") == names
    shown = "attention-error" if opened_name == "image" else "attention-result"
    page.wait_for(f"!document.querySelector('#{shown}').hidden")
