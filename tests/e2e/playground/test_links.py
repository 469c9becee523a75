"""The address of the page holds what the page shows: for reload, for Back, and for the browser of another person."""

import json
from collections.abc import Iterator

import pytest

from headwaiter_client import Client, FakeEncoder
from headwaiter_proto import encoder_pb2 as pb
from testbed.chromium import Browser, Page
from tests.e2e.playground.conftest import OpenTab, check_link_and_reload, next_frame, page_server, table
from tests.support.playground.changing_server import ChangingServer

TEXT = "the bread & the „ice“ is fresh + cold?"
CONTEXT_OF = "document.querySelector('#context-title').textContent.includes"
HASH = "decodeURIComponent(location.hash)"


@pytest.fixture
def server() -> ChangingServer:
    return ChangingServer(first=FakeEncoder(model="first", heads=4), second=FakeEncoder(model="second", heads=6))


@pytest.fixture
def client(server: ChangingServer) -> Iterator[Client]:
    with Client(transport=server) as connected:
        yield connected


def shown_errors(page: Page) -> list[str]:
    """Return the errors in all tabs, also in those that are not shown."""
    return page.texts(".error:not([hidden], :empty)")


def picture(page: Page) -> list[object]:
    """Return what the tab Attention shows, once the page has drawn it: first the title of the context vector."""
    next_frame(page)
    return [
        *page.texts("#context-title"),
        *page.texts("#lines-title, #context-numbers, #temperature-value"),
        table(page, "#weights-table"),
        page.texts("#chips .crossed-out bdi"),
        page.evaluate(
            "['model', 'attention-input', 'layer', 'head', 'temperature'].map(id => document.getElementById(id).value)"
        ),
        page.evaluate("['causal', 'no-self', 'dim'].map(id => document.getElementById(id).checked)"),
        page.evaluate("['order', 'find-query', 'find-key'].map(id => document.getElementById(id).value)"),
        page.evaluate("[...document.querySelectorAll('#heads button')].map(button => button.title)"),
        page.evaluate("['lines', 'context'].map(id => document.querySelector(`#${id} svg`).outerHTML)"),
    ]


def open_picture(open_tab: OpenTab, client: Client) -> Page:
    """Open the page, and choose something else than the page does in every control of the tab Attention."""
    page = open_tab(client, "attention", TEXT)
    page.wait_for("document.querySelector('#context svg')")
    page.choose("#model", "second")
    page.wait_for("document.querySelectorAll('#heads button').length === 12")
    page.wait_for("document.querySelector('#chips button').checkVisibility()")
    page.choose("#layer", "1")
    page.choose("#head", "2")
    page.click("#chips button:nth-child(7)")
    page.press("x")
    page.click("#chips button:nth-child(5)")
    page.click("#causal")
    page.click("#no-self")
    page.choose("#temperature", "0.5")
    page.choose("#find-key", "2")
    page.choose("#order", "pair")
    page.click("#dim")
    page.wait_for(f"{CONTEXT_OF}('token 4 “the”, layer 1, head 2')")
    page.wait_for(f"{HASH}.includes('temperature=0.5') && {HASH}.includes('dim=1')")
    return page


def test_a_copied_link_shows_the_same_picture_in_another_browser_profile_and_so_does_a_reload(
    open_tab: OpenTab, chromium: Browser, client: Client
) -> None:
    page = open_picture(open_tab, client)
    before = picture(page)
    chromium.send("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    page.click("#copy-link")
    page.wait_for("document.querySelector('#copied-link').textContent")
    assert page.texts("#copied-link") == ["Copied."]
    link = page.evaluate("location.href")
    other = chromium.open(link)
    other.wait_for(f"{CONTEXT_OF}('token 4')")
    assert picture(other) == before
    assert other.evaluate("location.href") == link
    assert other.texts("#link-note") == [""]
    assert other.errors == []
    other.close()
    page.evaluate("window.isOld = true")
    page.send("Page.reload")
    page.wait_for(f"!window.isOld && document.readyState === 'complete' && {CONTEXT_OF}('token 4')")
    assert picture(page) == before


def test_back_and_forward_walk_through_what_the_user_chose(
    open_tab: OpenTab, client: Client, server: ChangingServer
) -> None:
    page = open_tab(client, "attention", TEXT)
    page.wait_for(f"document.querySelector('#context svg') && {HASH}.includes('token=')")
    pictures = [picture(page)]
    opened = page.evaluate("Number(new URLSearchParams(location.hash.split('?')[1]).get('token'))")
    other = 3 if opened != 3 else 4
    steps = page.evaluate("history.length")
    page.click(f"#chips button:nth-child({other + 1})")
    page.wait_for(f"{CONTEXT_OF}('token {other}') && {HASH}.includes('token={other}')")
    pictures.append(picture(page))
    page.click("#causal")
    page.wait_for(f"{HASH}.includes('causal=1')")
    pictures.append(picture(page))
    page.type_text("#attention-input", "rain falls")
    page.wait_for(f"{HASH}.includes('text=rain')")
    page.wait_for("document.querySelector('#context-status').textContent === ''")
    pictures.append(picture(page))
    page.choose("#model", "second")
    page.wait_for(f"{HASH}.includes('model=second') && document.querySelectorAll('#heads button').length === 12")
    page.click("#tab-models")
    page.wait_for("location.hash.startsWith('#models')")
    assert page.evaluate("history.length") == steps + 5
    page.evaluate("history.back()")
    page.wait_for("document.querySelector('#panel-attention').checkVisibility()")
    assert page.evaluate("document.querySelector('#model').value") == "second"
    for title, shown in zip(("rain", "causal=1", f"token={other}", f"token={opened}"), reversed(pictures), strict=True):
        attends = server.count("Attend")
        page.evaluate("history.back()")
        page.wait_for(f"{HASH}.includes('{title}') && document.querySelectorAll('#heads button').length === 8")
        page.wait_for(f"document.querySelector('#context-title').textContent === {json.dumps(shown[0])}")
        assert picture(page) == shown
        # Only masks have changed: nothing is loaded.
        assert title != f"token={other}" or server.count("Attend") == attends
    page.evaluate("history.go(3)")
    page.wait_for(f"document.querySelector('#context-title').textContent === {json.dumps(pictures[3][0])}")
    assert picture(page) == pictures[3]


def test_a_link_of_another_version_says_so_until_the_user_goes_on(
    open_tab: OpenTab, chromium: Browser, client: Client, server: ChangingServer
) -> None:
    page = open_picture(open_tab, client)
    before = picture(page)
    server.models["second"] = (FakeEncoder(model="second", heads=6), "2")
    with page_server(client) as moved:
        other = chromium.open(moved.url + page.evaluate("location.hash"))
        other.wait_for(f"{CONTEXT_OF}('token 4')")
        assert other.texts("#link-note") == [
            "This link was made with another version of second: its numbers may have been different."
        ]
        assert picture(other) == before
        other.click("#chips button:nth-child(3)")
        other.wait_for("document.querySelector('#link-note').hidden")
        other.close()


@pytest.mark.parametrize(
    "damaged",
    [
        "",
        "?",
        "nowhere?layer=1",
        "attention?layer=99&head=99&token=999&crossedOut=1.x.77&temperature=hot&causal=yes",
        "attention?layer=-1&head=1e9&token=&crossedOut=...&temperature=9999&noSelf",
        "attention?%E0%A4%A&text=%FF%00&kind=nonsense&model=",
        "attention?model=__proto__&digest=%00",
        "attention?__proto__=1&constructor=2&text=%3Cimg src=x onerror=alert(1)%3E",
        "attention?" + "x" * 100_000,
    ],
)
def test_a_damaged_address_never_breaks_the_page(damaged: str, chromium: Browser, client: Client) -> None:
    with page_server(client) as server:
        page = chromium.open(f"{server.url}#{damaged}")
        page.wait_for("document.querySelector('#context svg')")
        page.wait_for("location.hash.includes('digest=')")
        assert shown_errors(page) == []
        assert page.errors == []
        page.close()


def test_an_address_of_a_tab_that_the_model_does_not_have_shows_the_first_tab(
    open_tab: OpenTab, client: Client
) -> None:
    page = open_tab(client, "attention", TEXT)
    page.wait_for(f"document.querySelector('#context svg') && {HASH}.includes('text=')")
    for tab in ("rerank", "images", "classify"):
        page.click("#tab-models")
        page.wait_for("location.hash.startsWith('#models')")
        page.evaluate(f"location.hash = '{tab}'")
        page.wait_for("location.hash.startsWith('#attention')")
        assert page.texts("[role=tab][aria-selected=true]") == ["Attention"]
        assert page.evaluate("document.querySelector('#context svg').checkVisibility()")
    assert shown_errors(page) == []


def test_after_an_address_of_a_removed_model_the_address_follows_the_page(open_tab: OpenTab, client: Client) -> None:
    page = open_tab(client, "attention", TEXT)
    page.wait_for(f"document.querySelector('#context svg') && {HASH}.includes('text=')")
    page.evaluate("location.hash = 'attention?model=gone&text=rain+falls&layer=1&head=2&token=1'")
    page.wait_for("document.querySelector('#page-note').textContent.includes('gone is no longer served')")
    page.wait_for(f"{CONTEXT_OF}('token 1 “rain”, layer 1, head 2') && {HASH}.includes('model=first')")
    page.type_text("#attention-input", "fresh bread please")
    page.wait_for(f"{HASH}.includes('text=fresh')")


def test_back_and_forward_before_the_model_has_come_ends_on_the_model_of_the_address(
    open_tab: OpenTab, client: Client, server: ChangingServer
) -> None:
    page = open_tab(client, "attention", TEXT)
    page.wait_for(f"document.querySelector('#context svg') && {HASH}.includes('model=first')")
    page.choose("#model", "second")
    page.wait_for(f"{HASH}.includes('model=second') && document.querySelectorAll('#heads button').length === 12")
    server.delays_s["GetModel"] = 0.5
    page.evaluate("history.back()")
    page.wait_for(f"{HASH}.includes('model=first')")
    page.evaluate("history.forward()")
    page.wait_for(f"{HASH}.includes('model=second')")
    # The replies about both models arrive.
    page.evaluate("new Promise(done => setTimeout(done, 1200))")
    assert page.evaluate("document.querySelector('#model').value") == "second"
    assert "model=second" in page.evaluate("location.hash")
    assert shown_errors(page) == []


def test_a_link_holds_the_query_of_the_texts(open_tab: OpenTab, chromium: Browser, client: Client) -> None:
    page = open_tab(client, "similarity", "the bread\nrain & stone")
    page.wait_for("document.querySelector('.cosines')")
    page.type_text("#similarity-query", "wet stone")
    page.wait_for("location.hash.includes('query=wet+stone') && document.querySelector('#query-ranking td')")
    check_link_and_reload(chromium, page, "#query-ranking, #cosines")


def test_a_link_holds_the_batch_of_the_costs(
    open_tab: OpenTab, chromium: Browser, client: Client, server: ChangingServer
) -> None:
    cost = pb.BatchCost(launch_s=0.001, token_s=1e-5, cell_s=1e-8)
    server.descriptions["first"].execution.cost.CopyFrom(cost)
    page = open_tab(client, "cost")
    page.wait_for("document.querySelector('#cost-table td')")
    for sequences in ("3", "5"):
        page.choose("#batch-size", sequences)
        page.wait_for(f"location.hash.includes('sequences={sequences}')")
    check_link_and_reload(chromium, page, "#cost-words, #cost-table, #batch-size-value")
    page.evaluate("history.back()")
    page.wait_for("document.querySelector('#batch-size-value').textContent === '3'")
