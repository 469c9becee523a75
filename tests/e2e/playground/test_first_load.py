"""How much the page loads before it shows the first picture, and how soon it does, also on a slow network."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.chromium import Browser
from testbed.server_process import RunningServer, running_server

MOST_REQUESTS = 10
MOST_BYTES = 60_000
SLOW = {"offline": False, "latency": 60, "downloadThroughput": 9e6 / 8, "uploadThroughput": 9e6 / 8}
# Keeps the time at which the context vector, the last part of the picture, is there.
WATCH = """new MutationObserver((_, watching) => {
    if (!document.querySelector('#context svg')) return;
    watching.disconnect();
    window.pictureS = performance.now() / 1000;
}).observe(document, { childList: true, subtree: true })"""


@pytest.fixture(scope="module")
def server(real_bundle: Path) -> Iterator[RunningServer]:
    with running_server(real_bundle, ["--provider", "cpu", "--playground", "on"]) as running:
        yield running


def first_picture(chromium: Browser, server: RunningServer, network: dict[str, float]) -> tuple[float, list[int]]:
    """Return the seconds until the first picture of a new browser, and the bytes of each reply with its headers."""
    page = chromium.open("data:text/html,")
    page.send("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
    if network:
        page.send("Network.emulateNetworkConditions", **network)
    sizes: dict[str, int] = {}
    record = page.record

    def record_sizes(event: str, parameters: dict[str, Any]) -> None:
        record(event, parameters)
        url = parameters["request"]["url"] if event == "Network.requestWillBeSent" else "data:"
        # Every few seconds, on a busy computer also before the picture, the page reads the list of models anew.
        if not url.startswith("data:") and not ("/ListModels" in url and not url.endswith("?1")):
            sizes[parameters["requestId"]] = 0
        elif event == "Network.loadingFinished" and parameters["requestId"] in sizes:
            sizes[parameters["requestId"]] = int(parameters["encodedDataLength"])

    page.record = record_sizes  # type: ignore[method-assign]
    page.send("Page.navigate", url=f"{server.metrics_url.removesuffix('metrics')}playground/")
    page.wait_for("window.pictureS")
    seconds = page.evaluate("window.pictureS")
    assert page.texts("#finding") == ["it looks at animal"]
    assert page.errors == []
    page.close()
    print(f"first picture after {seconds:.2f} s, {len(sizes)} requests, {sum(sizes.values())} bytes")
    return seconds, [*sizes.values()]


def test_the_first_picture_takes_few_requests_and_bytes(chromium: Browser, server: RunningServer) -> None:
    _, sizes = first_picture(chromium, server, {})
    assert 7 <= len(sizes) <= MOST_REQUESTS
    assert min(sizes) > 0
    assert sum(sizes) <= MOST_BYTES


@pytest.mark.exhaustive
@pytest.mark.parametrize(("network", "most_s"), [({}, 1.0), (SLOW, 2.0)])
def test_the_first_picture_comes_soon(
    network: dict[str, float], most_s: float, chromium: Browser, server: RunningServer
) -> None:
    # The best of a few, because other work on this computer counts too.
    assert min(first_picture(chromium, server, network)[0] for _ in range(5)) <= most_s
