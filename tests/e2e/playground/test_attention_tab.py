"""The tab of attention in Chromium: the weights, masks and files equal those of `client.attend`."""

import base64
import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray

from headwaiter_client import Client, FakeEncoder
from headwaiter_proto import encoder_pb2 as pb
from testbed.chromium import Page
from tests.e2e.playground.conftest import OpenTab, Served, next_frame, show_token, table
from tests.support.checkpoints import VOCABULARY
from tests.support.playground.looking_encoder import LookingEncoder, Looks

TEXT = "the bread is fresh please"
# A head that stands out: of equal heads, the page would ask for the exact weights.
ONE_BEST: Looks = {(0, 0): {(2, 1): 0.9}}


def shown_weights(page: Page) -> NDArray[np.float64]:
    """Return the column "shown weight" of the table, once the page has drawn what the user has chosen."""
    next_frame(page)
    return np.array([float(row[3]) for row in table(page, "#weights-table")])


def open_attention(open_tab: OpenTab, served: Served, text: str = TEXT) -> Page:
    page = open_tab(served, "attention", text)
    show_token(page)
    return page


def test_a_token_shows_the_weights_and_the_context_of_client_attend(open_tab: OpenTab, client: Client) -> None:
    page = open_attention(open_tab, client)
    page.click("#heads button[title='Layer 1, head 2']")
    page.click("#chips button:nth-child(5)")
    page.wait_for("document.querySelector('#context-title').textContent.includes('token 4 “fresh”, layer 1, head 2')")
    attention = client.attend(TEXT, layers=[1], heads=[2], query=4)
    weights = [f"{weight:.4f}" for weight in attention.weights[0, 0, 4]]
    assert [row[1] for row in table(page, "#weights-table")] == attention.tokens
    for column in (2, 3):
        assert [row[column] for row in table(page, "#weights-table")] == weights
    assert page.texts("#chips small") == weights
    assert page.texts("#lines .weight") == weights
    numbers = [f"{value:.4f}" for value in attention.context[0, 0]]
    page.wait_for(f"document.querySelector('#context-numbers').textContent === '{''.join(numbers)}'")


def test_the_context_vector_follows_masks_and_temperature(
    open_tab: OpenTab, client: Client, text_checkpoint: Path
) -> None:
    bert: torch.nn.Module = transformers.BertModel.from_pretrained(text_checkpoint, attn_implementation="eager").eval()
    rows: list[NDArray[Any]] = []
    value = bert.get_submodule("encoder.layer.0.attention.self.value")
    value.register_forward_hook(lambda _, __, output: rows.append(output[0].numpy()))
    attention = client.attend(TEXT, layers=[0], heads=[0], query=3)
    with torch.inference_mode():
        bert(torch.tensor([[{token: i for i, token in enumerate(VOCABULARY)}[token] for token in attention.tokens]]))
    values = np.split(rows[0].astype(np.float64), 4, axis=1)[0]
    weights = attention.weights[0, 0, 3].astype(np.float64)
    positions = np.arange(len(weights))

    page = open_attention(open_tab, client)
    page.click("#chips button:nth-child(4)")
    page.wait_for("document.querySelector('#context-title').textContent.includes('token 3')")
    for temperature in (0.5, 1.0, 2.0):
        page.choose("#temperature", str(temperature))
        acts: list[tuple[set[int], Callable[[], None]]] = [
            ({5}, lambda: page.press("x")),
            ({2, 5}, lambda: page.click("#lines svg > :nth-child(8)")),
            ({2, 4, 5, 6}, lambda: page.click("#causal")),
            ({2, 3, 4, 5, 6}, lambda: page.click("#no-self")),
            ({2, 4, 5, 6}, lambda: page.click("#no-self")),
            ({2, 5}, lambda: page.click("#causal")),
            ({5}, lambda: page.click("#lines svg > :nth-child(8)")),
            (set(), lambda: page.press("x")),
        ]
        for hidden, act in acts:
            page.evaluate("document.querySelector('#chips button:nth-child(6)').focus()")
            act()
            next_frame(page)
            powers = np.where(np.isin(positions, [*hidden]), 0, weights ** (1 / temperature))
            shown = [float(each) for each in page.texts("#context-numbers li")]
            np.testing.assert_allclose(shown, powers / powers.sum() @ values, rtol=0, atol=0.6e-4)
            crossed = page.evaluate("[...document.querySelectorAll('#chips .crossed-out')].length")
            assert crossed == len(hidden - {3, 4, 6})


def test_a_model_of_an_earlier_export_says_what_a_new_one_adds(open_tab: OpenTab) -> None:
    class EarlierEncoder(FakeEncoder):
        def unary(self, method: str, request: bytes, *others: Any) -> bytes:
            reply = super().unary(method, request, *others)
            if not method.endswith("/Attend"):
                return reply
            attention = pb.AttendResponse.FromString(reply)
            for name in ("query_vector", "keys", "values"):
                attention.ClearField(name)
            return attention.SerializeToString()

    page = open_attention(open_tab, EarlierEncoder())
    before = page.texts("#context-numbers li")
    assert "Export the model again" in page.texts("#context-hint")[0]
    page.click("#causal")
    next_frame(page)
    assert page.texts("#context-numbers li") == before


def test_the_arrow_keys_move_between_tokens_and_between_tabs(open_tab: OpenTab, client: Client) -> None:
    page = open_attention(open_tab, client)
    page.evaluate("document.querySelector('#chips [tabindex=\"0\"]').focus()")
    for key, position in (("ArrowRight", 2), ("End", 6), ("ArrowRight", 6), ("Home", 0), ("ArrowLeft", 0)):
        page.press(key)
        next_frame(page)
        assert (
            page.evaluate("[...document.querySelectorAll('#chips button')].indexOf(document.activeElement)") == position
        )
        assert page.evaluate("document.activeElement.getAttribute('aria-pressed')") == "true"
    page.evaluate("document.querySelector('#tab-attention').focus()")
    for key, tab in (
        ("ArrowRight", "similarity"),
        ("ArrowLeft", "attention"),
        ("ArrowLeft", "models"),
        ("Home", "attention"),
    ):
        if tab == "similarity":
            page.evaluate(f"document.querySelector('#similarity-input').value = {json.dumps(TEXT)}")
        page.press(key)
        assert page.evaluate("document.activeElement.id") == f"tab-{tab}"
        assert page.texts("[role=tabpanel]:not([hidden]) h2")
        assert page.evaluate("document.querySelector('[role=tabpanel]:not([hidden])').id") == f"panel-{tab}"


def test_token_ids_have_weights_too(open_tab: OpenTab, client: Client) -> None:
    page = open_attention(open_tab, client)
    page.choose("#attention-kind", "tokens")
    page.type_text("#attention-input", "2 7 8 3")
    page.wait_for(
        "document.querySelector('#chips').textContent.startsWith('2') && document.querySelector('#context svg')"
    )
    assert page.texts("#chips bdi") == ["2", "7", "8", "3"]
    expected = client.attend(np.array([2, 7, 8, 3]), layers=[0], heads=[0]).weights[0, 0, 1]
    assert page.texts("#chips small") == [f"{weight:.4f}" for weight in expected]
    page.type_text("#attention-input", "2 seven")
    page.wait_for("document.querySelector('#attention-error').textContent.includes('seven')")


def test_the_files_hold_the_weights_of_the_head(open_tab: OpenTab, client: Client) -> None:
    page = open_attention(open_tab, client, "= the bread")
    page.click("#causal")
    next_frame(page)
    # What the page offers as a file is read here instead of being saved.
    page.evaluate(
        "window.files = []; URL.createObjectURL = blob => { files.push(blob); return 'blob:kept'; };"
        "HTMLAnchorElement.prototype.click = function () { files.push(this.download); }; undefined"
    )
    page.click("#download-csv")
    page.wait_for("files.length === 2")
    rows = list(csv.DictReader(io.StringIO(page.evaluate("files[0].text()"))))
    attention = client.attend("= the bread", layers=[0], heads=[0])
    tokens = ["'=" if token == "[UNK]" else token for token in attention.tokens]
    assert [row["key_token"] for row in rows] == tokens * len(tokens)
    weights = attention.weights[0, 0]
    np.testing.assert_allclose([float(row["weight"]) for row in rows], weights.ravel(), rtol=1e-7)
    shown = np.array([float(row["shown_weight"]) for row in rows]).reshape(weights.shape)
    np.testing.assert_allclose(shown.sum(1), 1, rtol=1e-12)
    assert (np.triu(shown, 1) == 0).all()
    assert page.evaluate("files[1]") == "attention-layer-0-head-0.csv"
    page.click("#download-png")
    page.wait_for("files.length === 4")
    png = page.evaluate(
        "files[2].arrayBuffer().then(bytes => btoa(String.fromCharCode(...new Uint8Array(bytes).slice(0, 8))))"
    )
    assert base64.b64decode(png) == b"\x89PNG\r\n\x1a\n"
    # The picture has room for a title and a scale.
    height = page.evaluate("createImageBitmap(files[2]).then(bitmap => bitmap.height)")
    assert height == page.evaluate("document.querySelector('#map').height") + 72


def test_a_text_that_is_too_long_keeps_the_drawings_and_can_be_shortened(open_tab: OpenTab, client: Client) -> None:
    page = open_attention(open_tab, client)
    page.type_text("#attention-input", "🥐 bread " * 40)
    page.wait_for("document.querySelector('#attention-error').textContent.includes('32')")
    assert page.evaluate("document.querySelector('#attention-error').checkVisibility()")
    assert page.evaluate("document.querySelector('#lines svg').checkVisibility()")
    assert page.texts("#attention-status") == [f"The page still shows “{TEXT}”."]
    page.click("#truncate")
    page.wait_for("document.querySelectorAll('#chips button').length === 32")
    assert page.evaluate("document.querySelector('#attention-input').value") == ("🥐 bread " * 15).strip()
    assert not page.evaluate("document.querySelector('#attention-error').checkVisibility()")
    assert not page.evaluate("document.querySelector('#truncate').checkVisibility()")
    # The browser itself logs the status of the refused call.
    assert page.errors.pop().startswith("Failed to load resource: the server responded with a status of 400")


def test_a_token_that_the_vocabulary_lacks_is_shown_as_it_was_typed(open_tab: OpenTab, client: Client) -> None:
    page = open_attention(open_tab, client, "bread 🥐 is fresh")
    tokens = client.attend("bread 🥐 is fresh", layers=[0], heads=[0]).tokens
    assert tokens[2] == "[UNK]"
    assert page.texts("#chips bdi") == [*tokens[:2], "🥐", *tokens[3:]]


def test_the_chosen_token_is_followed_through_changes_of_the_text(open_tab: OpenTab, client: Client) -> None:
    page = open_attention(open_tab, client)
    page.click("#chips button:nth-child(5)")
    page.type_text("#attention-input", f"rain {TEXT}")
    page.wait_for("document.querySelectorAll('#chips button').length === 8")
    page.wait_for("document.querySelector('#context-title').textContent.includes('token 5 “fresh”')")
    assert page.texts("#chips [aria-pressed=true] bdi") == ["fresh"]


def test_the_map_names_its_cells_and_a_click_shows_the_token(open_tab: OpenTab) -> None:
    page = open_attention(open_tab, FakeEncoder(heads=1, layers=1), " ".join(f"token{number}" for number in range(200)))
    box = page.evaluate(
        "(map => { map.scrollIntoView({ block: 'end' }); return map.getBoundingClientRect().toJSON(); })"
        "(document.querySelector('#map'))"
    )
    # Row 190 of 202, column 100.
    place = {"x": box["x"] + box["width"] * 100.5 / 202, "y": box["y"] + box["height"] * 190.5 / 202}
    page.send("Input.dispatchMouseEvent", type="mouseMoved", **place)
    assert page.evaluate("document.querySelector('#map').title") == f"token189 → token99: {1 / 202:.4f}"
    for kind in ("mousePressed", "mouseReleased"):
        page.send("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)
    page.wait_for("document.querySelector('#lines-title').textContent.includes('token 190')")
    inside = """((box, chip) => box.top <= chip.top && chip.bottom <= box.bottom)(
        ...['#chips', '#chips [aria-pressed=true]'].map(each =>
            document.querySelector(each).getBoundingClientRect()))"""
    assert page.evaluate(inside)


@pytest.mark.parametrize(
    ("words", "layers", "maps"),
    [
        (5, [(0, 1, 2, 3)], 32),
        # As long as the text is, the weights of all layers might be too large: one head tells that they are not.
        (80, [(0,), (0, 1, 2, 3)], 32),
        # The weights of 32 heads are too large, those of 8 are not.
        (300, [(0,), (0,), (3,), (3,)], 8),
    ],
)
def test_the_page_asks_once_for_the_weights_of_all_layers_unless_they_are_too_large(
    words: int, layers: list[tuple[int, ...]], maps: int, open_tab: OpenTab
) -> None:
    fake = LookingEncoder(ONE_BEST, layers=4, heads=8)
    page = open_attention(open_tab, fake, "lengthening " * words)
    page.choose("#layer", "3")
    page.wait_for("document.querySelector('#lines-title').textContent.includes('layer 3')")
    page.wait_for("document.querySelector('#context-title').textContent.includes('layer 3')")
    assert len(page.texts("#heads button")) == maps
    assert page.texts("#heads-title") == ["All heads" if maps == 32 else "All heads of layer 3"]
    requests = [request for request in fake.requests if isinstance(request, pb.AttendRequest)]
    assert [tuple(request.layers) for request in requests if not request.HasField("query")] == layers


def test_the_small_maps_are_drawn_once_for_a_frame_and_only_if_they_change(open_tab: OpenTab) -> None:
    page = open_attention(open_tab, FakeEncoder(heads=4, layers=1))
    page.evaluate(
        "window.maps = 0; (draw => { CanvasRenderingContext2D.prototype.putImageData = function (...given) "
        "{ window.maps += 1; draw.apply(this, given); }; })(CanvasRenderingContext2D.prototype.putImageData)"
    )
    for act, drawn in (
        ("document.querySelector('#heads button:nth-child(3)').click()", 1),
        ("document.querySelector('#chips button:nth-child(3)').click()", 1),
        ("for (let each = 0; each < 9; each += 1) document.querySelector('#causal').click()", 1 + 4),
    ):
        page.evaluate(f"window.maps = 0; {act}")
        page.wait_for("document.querySelector('#map-title').textContent.includes('head 2')")
        next_frame(page)
        assert page.evaluate("window.maps") == drawn, act
    assert page.evaluate("[...document.querySelectorAll('#heads button')].map(each => each.ariaPressed)") == [
        "false",
        "false",
        "true",
        "false",
    ]


def test_one_scale_holds_for_the_colours_of_all_weights(open_tab: OpenTab) -> None:
    # All weights of a text of two words are 1 / 4: on each map they have the colour of 0.25.
    page = open_attention(open_tab, FakeEncoder(heads=2), "two words")
    scale = "[...document.querySelectorAll('#weight-scale span')]"
    assert page.texts("#weight-scale span") == ["0", "0.01", "0.1", "0.25", "0.5", "1"]
    colour = page.evaluate(f"{scale}[3].style.backgroundColor")
    channels = [int(channel) for channel in re.findall(r"\d+", colour)]
    chips = "[...document.querySelectorAll('#chips button')].map(chip => chip.style.backgroundColor)"
    assert page.evaluate(chips) == [colour] * 4
    pixel = """(canvas => [...canvas.getContext('2d').getImageData(
        canvas.width - 3, canvas.height - 3, 1, 1).data.slice(0, 3)])"""
    for canvas in ("#heads canvas", "#map"):
        # The pixels have 256 shades.
        drawn = page.evaluate(f"{pixel}(document.querySelector('{canvas}'))")
        np.testing.assert_allclose(drawn, channels, atol=1, err_msg=canvas)


def test_a_table_that_must_be_scrolled_says_so(open_tab: OpenTab) -> None:
    page = open_attention(open_tab, FakeEncoder(), "bread " * 40)
    assert "Scroll to see all 42 rows" in page.texts("#weights-table caption")[0]
    page.type_text("#attention-input", "bread")
    page.wait_for("document.querySelectorAll('#chips button').length === 3")
    assert "Scroll" not in page.texts("#weights-table caption")[0]
