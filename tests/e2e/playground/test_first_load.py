"""How much the page loads before it shows the first picture, and how soon it does, also on a slow network."""

import pytest

from testbed.chromium import Browser
from testbed.server_process import RunningServer

MOST_REQUESTS = 10
MOST_BYTES_OF_FILES = 60_000
SLOW = {"offline": False, "latency": 60, "downloadThroughput": 9e6 / 8, "uploadThroughput": 9e6 / 8}
# Keeps the time at which the context vector, the last part of the picture, is there.
WATCH = """new MutationObserver((_, watching) => {
    if (!document.querySelector('#context svg')) return;
    watching.disconnect();
    window.pictureS = performance.now() / 1000;
}).observe(document, { childList: true, subtree: true })"""
SIZES = """[...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]
    .filter(({ responseEnd }) => responseEnd <= 1000 * window.pictureS)
    .map(({ name, transferSize }) => [name, transferSize])"""


def first_picture(
    chromium: Browser, server: RunningServer, network: dict[str, float]
) -> tuple[float, list[tuple[str, int]]]:
    """Return the seconds until the first picture of a new browser, and the address and the bytes of each request."""
    page = chromium.open("data:text/html,")
    page.send("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
    if network:
        page.send("Network.emulateNetworkConditions", **network)
    address = f"{server.metrics_url.removesuffix('metrics')}playground/#attention?text=the+bread+is+fresh"
    page.send("Page.navigate", url=address)
    page.wait_for("window.pictureS")
    seconds, sizes = page.evaluate("window.pictureS"), page.evaluate(SIZES)
    assert page.errors == []
    page.close()
    print(f"first picture after {seconds:.2f} s, {len(sizes)} requests, {sum(size for _, size in sizes)} bytes")
    return seconds, sizes


def test_the_first_picture_takes_few_requests_and_bytes(chromium: Browser, http_server: RunningServer) -> None:
    _, sizes = first_picture(chromium, http_server, {})
    assert 0 < len(sizes) <= MOST_REQUESTS
    of_files = sum(size for name, size in sizes if "/call/" not in name)
    print(f"files: {of_files} bytes")
    assert 0 < of_files <= MOST_BYTES_OF_FILES


@pytest.mark.exhaustive
@pytest.mark.parametrize(("network", "most_s"), [({}, 1.0), (SLOW, 2.0)])
def test_the_first_picture_comes_soon(
    network: dict[str, float], most_s: float, chromium: Browser, http_server: RunningServer
) -> None:
    # The best of a few, because other work on this computer counts too.
    assert min(first_picture(chromium, http_server, network)[0] for _ in range(5)) <= most_s
