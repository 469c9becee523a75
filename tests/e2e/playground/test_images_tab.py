"""The tab Images in Chromium: labels and attention over patches equal those of the client."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from headwaiter_client import Client
from headwaiter_export.config.choices import Pooling
from testbed.chromium import Browser, Page
from testbed.server_process import running_server
from tests.e2e.playground.conftest import OpenTab, next_frame, table
from tests.e2e.playground.test_copied_calls import copied, reply_of
from tests.support.checkpoints import save_vit
from tests.support.e2e.exported import export_checkpoint
from tests.support.playground.accessibility import problems
from tests.support.shared_folders import SharedFolders

pytestmark = [pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def vit(shared_folders: SharedFolders) -> Iterator[Client]:
    """A client of a classifier of images, which cuts them into 3 by 3 patches."""

    def make(folder: Path) -> None:
        folder.mkdir()
        save_vit(folder, "ViTForImageClassification", num_labels=3)
        ViTImageProcessorPil(size={"height": 12, "width": 12}).save_pretrained(folder)
        export_checkpoint(folder, folder / "bundle", "vit", attends=True, pooling=Pooling.CLS)

    bundle = shared_folders.get("playground-images", make) / "bundle"
    with running_server(bundle, ["--provider", "cpu"]) as server, Client(server.address) as client:
        yield client


def picture(folder: Path, width: int, height: int) -> Path:
    """Write a PNG of smooth colours."""
    across, down = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    path = folder / f"{width}.png"
    Image.fromarray(np.stack([across, down, 255 - across], -1).astype(np.uint8)).save(path)
    return path


def open_images(open_tab: OpenTab, client: Client, path: Path, width: int = 1280, dark: bool = False) -> Page:
    page = open_tab(client, "images", width=width, dark=dark)
    page.choose_file("#images-input", path)
    page.wait_for("document.querySelector('#patch-table td')")
    return page


def shown_weights(page: Page) -> dict[str, str]:
    next_frame(page)
    return {row[0]: row[1] for row in table(page, "#patch-table")}


def expected_weights(row: np.ndarray) -> dict[str, str]:
    names = ["The class token", *(f"Patch in row {row}, column {column}" for row in range(3) for column in range(3))]
    return {name: f"{weight:.4f}" for name, weight in zip(names, row, strict=True)}


def test_a_link_holds_what_is_chosen_but_not_the_picture(
    open_tab: OpenTab, chromium: Browser, vit: Client, tmp_path: Path
) -> None:
    path = picture(tmp_path, 60, 40)
    page = open_images(open_tab, vit, path)
    for name, value in (("layer", "1"), ("head", "2"), ("token", "4")):
        page.choose(f"#patch-{name}", value)
        page.wait_for(f"location.hash.includes('{name}={value}')")
    title = page.texts("#patch-title")
    other = chromium.open(page.evaluate("location.href"))
    other.wait_for("document.querySelector('#images-input')?.checkVisibility()")
    other.choose_file("#images-input", path)
    other.wait_for("document.querySelector('#patch-table td')")
    next_frame(other)
    assert other.texts("#patch-title") == title
    assert shown_weights(other) == shown_weights(page)
    other.close()
    page.evaluate("history.back()")
    page.wait_for("document.querySelector('#patch-title').textContent.endsWith(': The class token, layer 1, head 2')")


def test_a_picture_shows_labels_and_attention_of_the_client(open_tab: OpenTab, vit: Client, tmp_path: Path) -> None:
    path = picture(tmp_path, 60, 40)
    page = open_images(open_tab, vit, path)
    assert page.texts("[role=tab]:not([hidden])")[0] == "Images"
    result = vit.classify([path])
    rows = table(page, "#images-labels")
    order = np.argsort(-result.scores[0])
    assert [row[:2] for row in rows] == [[result.labels[i], f"{result.scores[0, i]:.4f}"] for i in order]
    weights = vit.attend(path).weights
    assert shown_weights(page) == expected_weights(weights[0, 0, 0])
    assert list(shown_weights(page).values()) == sorted(shown_weights(page).values(), reverse=True)
    page.choose("#patch-layer", "1")
    page.wait_for("document.querySelector('#patch-title').textContent.includes('layer 1')")
    page.choose("#patch-head", "3")
    page.click("#patch-map")  # The patch in the middle.
    assert shown_weights(page) == expected_weights(weights[1, 3, 5])
    assert page.evaluate("document.querySelector('#patch-token').value") == "5"
    # The brightest patch is that of the largest weight: the others lie under a shade.
    pixels = page.evaluate(
        "(canvas => { const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);"
        "return Array.from({ length: 9 }, (_, index) => {"
        "const row = Math.floor((Math.floor(index / 3) + 0.75) * canvas.height / 3);"
        "const at = 4 * (row * canvas.width + Math.floor((index % 3 + 0.75) * canvas.width / 3));"
        "return [...data.slice(at, at + 3)]; }); })(document.querySelector('#patch-map'))"
    )
    at = [(index % 3 + 0.75) / 3 for index in range(9)], [(index // 3 + 0.75) / 3 for index in range(9)]
    own = np.array([[255 * x, 255 * y, 255 - 255 * x] for x, y in zip(*at, strict=True)])
    patches = weights[1, 3, 5, 1:]
    shade = 1 - 0.8 * (1 - np.sqrt(patches / patches.max()))
    np.testing.assert_allclose(np.array(pixels), own * shade[:, None], rtol=0, atol=8)


def test_a_large_picture_is_sent_as_a_smaller_copy(open_tab: OpenTab, vit: Client, tmp_path: Path) -> None:
    path = tmp_path / "large.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (400, 600, 3), np.uint8)).save(path)
    assert path.stat().st_size > 256 << 10
    page = open_images(open_tab, vit, path)
    assert "600 × 400 pixels" in page.texts("#images-status")[0]
    assert "smaller copy" in page.texts("#images-status")[0]
    page.choose_file("#images-input", picture(tmp_path, 30, 30))
    page.wait_for("document.querySelector('#images-status').textContent.includes('30 × 30')")
    assert "copy" not in page.texts("#images-status")[0]
    wrong = tmp_path / "wrong.png"
    wrong.write_text("no picture")
    page.choose_file("#images-input", wrong)
    page.wait_for("document.querySelector('#images-error').textContent.includes('wrong.png')")
    # The picture before stays below the error.
    assert page.texts("#images-status") == ["The page still shows the result before."]
    assert page.evaluate("document.querySelector('#patch-map').checkVisibility()")
    # The server takes no picture of so many pixels, however small the file is.
    plain = tmp_path / "plain.png"
    Image.new("RGB", (6000, 6000), "white").save(plain)
    assert plain.stat().st_size < 180_000
    page.choose_file("#images-input", plain)
    page.wait_for("document.querySelector('#images-status').textContent.includes('6000 × 6000 pixels')")
    assert "smaller copy" in page.texts("#images-status")[0]
    assert page.texts("#images-error") == [""]
    # Chromium's canvases have sides of at most 65535 pixels.
    narrow = tmp_path / "narrow.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (3, 70_000, 3), np.uint8)).save(narrow)
    page.choose_file("#images-input", narrow)
    page.wait_for("document.querySelector('#images-error').textContent.includes('narrow.png')")
    assert "too long and narrow" in page.texts("#images-error")[0]


def test_a_long_file_name_fits_on_the_screen(open_tab: OpenTab, vit: Client, tmp_path: Path) -> None:
    path = picture(tmp_path, 30, 30).rename(tmp_path / f"{'n' * 200}.png")
    page = open_images(open_tab, vit, path)
    assert path.name in page.texts("#images-status")[0]
    assert page.evaluate("document.documentElement.scrollWidth") == 1280


@pytest.mark.parametrize("form", ["curl", "python"])
def test_the_copied_call_of_a_large_picture_runs(form: str, open_tab: OpenTab, vit: Client, tmp_path: Path) -> None:
    path = tmp_path / "noise.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (200, 270, 3), np.uint8)).save(path)
    assert 150_000 < path.stat().st_size < 180_000
    page = open_images(open_tab, vit, path)
    assert reply_of(form, copied(page, form))["weights"]["shape"] == [1, 4, 10, 10]


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_the_tab_of_images_is_accessible(
    width: int, dark: bool, axe: str, open_tab: OpenTab, vit: Client, tmp_path: Path
) -> None:
    page = open_images(open_tab, vit, picture(tmp_path, 60, 40), width, dark)
    page.evaluate(axe)
    assert problems(page, width) == []
