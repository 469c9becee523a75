"""Take the pictures of the playground, with Chromium and a server of all-MiniLM-L6-v2.

Run as `make screenshots`. Every tab, at the width of a desktop and of a phone, light and dark, goes to
build/screenshots. The pictures that the documentation shows go to docs/pictures.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from PIL import Image

from headwaiter_client import Client
from testbed.chromium import Browser, Page, running_chromium
from testbed.minilm import ROOT, bundle
from testbed.server_process import RunningServer, running_server

ALL = ROOT / "build" / "screenshots"
PICTURES = Path(__file__).parent
WIDTHS = (1280, 390)
# What is on the screen once a tab has loaded.
LOADED = {
    "attention": "#context svg",
    "similarity": ".cosines",
    "latency": "#live .tile path",
    "cost": "#batches figure",
    "models": "#model-cards article",
}
# The tab, the width and whether it is dark, and the height of the picture.
DOCUMENTED = {
    "playground-attention.png": ("attention", 1280, False, 1400),
    "playground-similarity.png": ("similarity", 1280, False, 1180),
    "playground-latency.png": ("latency", 1280, False, 940),
    "playground-cost.png": ("cost", 1280, True, 1480),
    "playground-phone.png": ("attention", 390, True, 1100),
}


def main() -> None:
    """Take all pictures."""
    ALL.mkdir(parents=True, exist_ok=True)
    flags = ["--provider", "cpu", "--playground", "on"]
    with running_server(bundle(), flags) as server, running_chromium() as browser:
        for tab in LOADED:
            for width in WIDTHS:
                for dark in (False, True):
                    page = open_tab(browser, server, tab, width, dark=dark)
                    page.screenshot(picture_of(tab, width, dark=dark))
                    page.close()
    for name, (tab, width, dark, height) in DOCUMENTED.items():
        compress(picture_of(tab, width, dark=dark), height, PICTURES / name)


def send_small_requests(address: str) -> None:
    """Send requests from many callers at once, so that several requests share a batch."""
    texts = [" ".join(["bread"] * (1 + 7 * number % 23)) for number in range(60)]
    with Client(address) as client, ThreadPoolExecutor(20) as callers:
        list(callers.map(lambda first: client.encode(texts[first : first + 2]), range(0, len(texts), 2)))


def open_tab(browser: Browser, server: RunningServer, tab: str, width: int, *, dark: bool) -> Page:
    """Open a tab, and use it as a reader would."""
    if tab == "cost":
        send_small_requests(server.address)
    page = browser.open(f"{server.metrics_url.replace('metrics', 'playground/')}#{tab}", width, dark=dark)
    page.wait_for("document.querySelector('#model-summary').textContent")
    if tab == "attention":
        page.wait_for("document.querySelector('#context svg')")
    if tab == "latency":
        page.choose("#latency-requests", "12")
        # Two calls run at a time, and the view of the server needs two readings.
        page.click("#latency-send")
        page.wait_for("document.querySelector('#latency-status').textContent.endsWith('answered.')")
        page.wait_for("document.querySelector('#live .tile')")
        page.click("#latency-send")
        page.wait_for("document.querySelectorAll('#live .tile path')[3].getAttribute('d').split('L').length > 2")
    page.wait_for(f"document.querySelector('{LOADED[tab]}')")
    page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    return page


def picture_of(tab: str, width: int, *, dark: bool) -> Path:
    """Return the path of a picture."""
    return ALL / f"{tab}-{width}-{'dark' if dark else 'light'}.png"


def compress(picture: Path, height: int, target: Path) -> None:
    """Write the top of a picture with few colours, so that it takes little space in the repository."""
    with Image.open(picture) as image:
        top = image.convert("RGB").crop((0, 0, image.width, min(height, image.height)))
        top.quantize(128, dither=Image.Dither.NONE).save(target, optimize=True)


if __name__ == "__main__":
    main()
