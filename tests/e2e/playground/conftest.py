"""Chromium, and pages of the playground: of a real server and of fake ones."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from google.protobuf.message import Message

from headwaiter_client import Client
from headwaiter_client.calls import steps
from headwaiter_client.cli.page_server import PageServer
from headwaiter_client.transport.interface import Transport
from testbed.chromium import Browser, Page, chromium_path, running_chromium
from testbed.server_process import RunningServer, running_server
from tests.support.playground.accessibility import read_axe

# A client of a server, or a fake server.
Served = Client | Transport
# Opens a tab of the playground: open_tab(client, "attention", "a text", width=390, dark=True).
OpenTab = Callable[..., Page]
# Opens a tab of a server's own page that asks for the token: open_signed_out("attention").
OpenSignedOut = Callable[[str], Page]

# The tabs, and what is on the screen once a tab has loaded.
LOADED = {
    "attention": "#context svg",
    "similarity": ".cosines",
    "latency": "#stages rect",
    "cost": "#batches figure",
    "models": "#model-cards article",
}
TOKEN = "s3cret"


@contextmanager
def page_server(client: Client) -> Iterator[PageServer]:
    """Serve the page, and pass its calls to a client."""

    def call(method: str, request: Message, reply_class: type[Message]) -> Message:
        return client.run(steps.call_method(method, request, reply_class, 10.0))

    with PageServer(call, 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    if chromium_path() is None:
        pytest.skip("Chromium is missing: install the package chromium")
    with running_chromium() as browser:
        yield browser


@pytest.fixture(scope="session")
def axe() -> str:
    return read_axe()


@pytest.fixture
def client(text_server: RunningServer) -> Iterator[Client]:
    with Client(text_server.address) as connected:
        yield connected


@pytest.fixture(scope="session")
def own_origin(text_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The HTTP address of a server of "tiny-text" that serves the page itself, asks for TOKEN, and has run a batch."""
    token_file = tmp_path_factory.mktemp("playground") / "token"
    token_file.write_text(TOKEN)
    flags = ["--provider", "cpu", "--playground", "on", "--token-file", str(token_file)]
    with running_server(text_bundle, flags) as server:
        with Client(server.address, token=TOKEN) as client:
            client.encode(["bread"])
        yield server.metrics_url.removesuffix("metrics")


@pytest.fixture
def open_signed_out(chromium: Browser, own_origin: str) -> Iterator[OpenSignedOut]:
    """A function that opens a tab of the server's own page, which then asks for the token.

    At the end of the test, the page has asked no other host, and its only errors are the refusals of 401, which the
    browser itself logs.
    """
    opened: list[Page] = []

    def open_page(tab: str) -> Page:
        page = chromium.open(f"{own_origin}playground/#{tab}")
        opened.append(page)
        page.wait_for("!document.querySelector('#sign-in').hidden")
        assert not any("/call/" in url for url in page.urls)
        return page

    yield open_page
    for page in opened:
        assert [error for error in page.errors if "status of 401" not in error] == []
        assert [url for url in page.urls if not url.startswith(own_origin)] == []
        page.close()


@pytest.fixture
def open_tab(chromium: Browser) -> Iterator[OpenTab]:
    """A function that opens a tab of the playground; then, no page has had an error or has asked another host.

    The page first shows another tab, with which the panels of most tabs come, so that a text for this tab can be put in
    place of the sample, which is too long for tiny models.
    """
    opened: list[tuple[Page, PageServer]] = []
    with ExitStack() as stack:

        def open_page(served: Served, tab: str, text: str = "", *, width: int = 1280, dark: bool = False) -> Page:
            client = served if isinstance(served, Client) else stack.enter_context(Client(transport=served))
            server = stack.enter_context(page_server(client))
            page = chromium.open(f"{server.url}#models", width, dark=dark)
            opened.append((page, server))
            page.wait_for("document.querySelector('#model-summary').textContent")
            page.wait_for("document.querySelector('#model-cards article')")
            if text:
                page.evaluate(f"document.querySelector('#{tab}-input').value = {json.dumps(text)}")
            page.click(f"#tab-{tab}")
            return page

        yield open_page
        for page, server in opened:
            own = server.url.removesuffix("playground/")
            assert [url for url in page.urls if not url.startswith((own, f"blob:{own}"))] == []
            assert page.errors == []
            page.close()


def next_frame(page: Page) -> None:
    """Wait until the page has drawn what the user has chosen: two frames, because the first may be under way."""
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def check_link_and_reload(chromium: Browser, page: Page, selectors: str) -> None:
    """Check that the address of a page shows the same texts of some elements in another browser, and after a reload."""
    page.wait_for("location.hash.includes('digest=')")
    shown = page.texts(selectors)
    assert any(shown)
    same = f"""JSON.stringify(
        Array.from(document.querySelectorAll({json.dumps(selectors)}), found => found.textContent))
        === JSON.stringify({json.dumps(shown)})"""
    link = page.evaluate("location.href")
    other = chromium.open(link)
    other.wait_for(same)
    assert other.errors == []
    other.close()
    page.evaluate("window.isOld = true")
    page.send("Page.reload")
    page.wait_for(f"!window.isOld && document.readyState === 'complete' && {same}")
    assert page.evaluate("location.href") == link


def show_token(page: Page, layer: int = 0, head: int = 0, token: int = 1) -> None:
    """Choose what the tab Attention shows, once it shows the head that the page has chosen."""
    page.wait_for("document.querySelector('#context svg')")
    page.choose("#layer", str(layer))
    page.choose("#head", str(head))
    page.evaluate(f"document.querySelectorAll('#chips button')[{token}].click()")
    title = "document.querySelector('#context-title').textContent"
    page.wait_for(f"{title}.includes('token {token} ') && {title}.endsWith('layer {layer}, head {head}')")


def table(page: Page, selector: str) -> list[list[str]]:
    """Return the cells of the rows of a table."""
    rows = f"document.querySelectorAll('{selector} tbody tr')"
    texts: list[list[str]] = page.evaluate(
        f"Array.from({rows}, row => Array.from(row.cells, cell => cell.textContent))"
    )
    return texts
