"""The playground in Chromium: what each tab shows equals what the server answers."""

import base64
import csv
import io
import json
import re

import numpy as np
import pytest
from numpy.typing import NDArray

from headwaiter_client import Client, FakeEncoder
from headwaiter_proto import encoder_pb2 as pb
from testbed.chromium import Page
from tests.e2e.playground.conftest import LOADED, TOKEN, OpenSignedOut, OpenTab

TEXT = "the bread is fresh please"
TEXTS = ["the bread is fresh", "rain falls on stone", "a table for two please"]
HTML = "<img src=x onerror=window.hacked=1><script>window.hacked=1</script>"


def table(page: Page, selector: str) -> list[list[str]]:
    """Return the cells of the rows of a table."""
    rows = f"document.querySelectorAll('{selector} tbody tr')"
    texts: list[list[str]] = page.evaluate(
        f"Array.from({rows}, row => Array.from(row.cells, cell => cell.textContent))"
    )
    return texts


def next_frame(page: Page) -> None:
    """Wait until the page has drawn its next frame."""
    page.evaluate("new Promise(requestAnimationFrame)")


def shown_weights(page: Page) -> NDArray[np.float64]:
    """Return the column "shown weight" of the table, once the page has drawn what the user has chosen."""
    next_frame(page)
    return np.array([float(row[3]) for row in table(page, "#weights-table")])


def open_attention(open_tab: OpenTab, client: Client, text: str = TEXT) -> Page:
    page = open_tab(client, "attention", text)
    page.wait_for("document.querySelector('#context svg')")
    return page


def test_a_token_shows_the_weights_and_the_context_of_client_attend(open_tab: OpenTab, client: Client) -> None:
    page = open_attention(open_tab, client)
    page.choose("#layer", "1")
    page.wait_for("document.querySelector('#lines-title').textContent.includes('layer 1')")
    page.click("#heads button:nth-child(3)")
    page.click("#chips button:nth-child(5)")
    page.wait_for("document.querySelector('#context-title').textContent === 'Context vector of token 4, head 2'")
    attention = client.attend(TEXT, layers=[1], heads=[2], query=4)
    assert attention.context is not None
    weights = [f"{weight:.4f}" for weight in attention.weights[0, 0, 4]]
    assert [row[1] for row in table(page, "#weights-table")] == attention.tokens
    for column in (2, 3):
        assert [row[column] for row in table(page, "#weights-table")] == weights
    assert page.texts("#chips small") == weights
    assert page.texts("#lines .weight") == weights
    numbers = [f"{value:.4f}" for value in attention.context[0, 0]]
    page.wait_for(f"document.querySelector('#context-numbers').textContent === '{''.join(numbers)}'")


def test_masks_and_temperature_renormalise_the_weights(open_tab: OpenTab, client: Client) -> None:
    page = open_attention(open_tab, client)
    exact = client.attend(TEXT, layers=[0], heads=[0]).weights[0, 0].astype(np.float64)
    positions = np.arange(len(exact))
    half_a_digit = 0.51e-4
    page.click("#chips button:nth-child(4)")
    page.click("#causal")
    row = shown_weights(page)
    assert (row[4:] == 0).all()
    np.testing.assert_allclose(
        row, np.where(positions > 3, 0, exact[3]) / exact[3, :4].sum(), rtol=0, atol=half_a_digit
    )
    page.click("#no-self")
    row = shown_weights(page)
    assert (row[3:] == 0).all()
    assert "add up to 1.0000" in page.texts("#weights-table caption")[0]
    np.testing.assert_allclose(row[:3], exact[3, :3] / exact[3, :3].sum(), rtol=0, atol=half_a_digit)
    page.click("#chips button:nth-child(1)")
    assert (shown_weights(page) == 0).all()
    assert "nothing to look at" in page.texts("#weights-table caption")[0]
    page.click("#reset")
    page.choose("#temperature", "0.5")
    np.testing.assert_allclose(shown_weights(page), exact[0] ** 2 / (exact[0] ** 2).sum(), rtol=0, atol=half_a_digit)
    page.click("#reset")
    next_frame(page)
    assert [row[3] for row in table(page, "#weights-table")] == [f"{weight:.4f}" for weight in exact[0]]


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
    rows = list(csv.DictReader(io.StringIO(page.evaluate("files[0].text()"))))
    attention = client.attend("= the bread", layers=[0], heads=[0])
    assert attention.tokens is not None
    tokens = [f"'{token}" if token == "=" else token for token in attention.tokens]
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


def test_the_matrix_holds_the_cosines_of_client_encode(open_tab: OpenTab, client: Client) -> None:
    page = open_tab(client, "similarity", "\n".join(TEXTS))
    page.wait_for("document.querySelector('.cosines')")
    pooled = client.encode(TEXTS).pooled
    assert pooled is not None
    cosines = (pooled @ pooled.T).astype(np.float64)
    shown = np.array([[float(cell) for cell in row[1:]] for row in table(page, "#cosines")])
    np.testing.assert_allclose(shown, cosines, rtol=0, atol=0.51e-3)
    nearest = np.where(np.eye(len(TEXTS), dtype=bool), -2, cosines).argmax(1)
    assert [row[1] for row in table(page, "#neighbours")] == [f"{index + 1} {TEXTS[index]}" for index in nearest]
    page.type_text("#similarity-input", "rain\n\nrain\n")
    page.wait_for("document.querySelectorAll('#cosines tbody tr').length === 2")
    assert [row[1:] for row in table(page, "#cosines")] == [["1.000", "1.000"]] * 2


def test_the_stages_of_a_request_add_up_to_its_time_in_the_browser(open_tab: OpenTab, client: Client) -> None:
    page = open_tab(client, "latency")
    page.choose("#latency-requests", "3")
    page.choose("#latency-sequences", "2")
    page.click("#latency-send")
    page.wait_for("document.querySelector('#latency-status').textContent === '3 of 3 requests answered.'")
    rows = table(page, "#stages-table")
    assert [row[:2] for row in rows] == [[f"{number} Encode", "2"] for number in (3, 2, 1)]
    for row in rows:
        *stages, total = (float(cell) for cell in row[2:])
        assert sum(stages) == pytest.approx(total, rel=0.02, abs=0.05)
        assert min(stages) >= 0
        assert stages[3] > 0  # compute
    assert len(page.evaluate("[...document.querySelectorAll('#stages rect')].map(bar => bar.outerHTML)")) == 3 * 6
    page.wait_for("document.querySelector('#live-note').textContent.includes('no metrics')")


def test_the_cost_follows_the_server_and_the_batches_are_those_that_ran(open_tab: OpenTab, client: Client) -> None:
    client.encode(TEXTS)
    page = open_tab(client, "cost")
    page.choose("#batch-size", "3")
    page.wait_for("document.querySelector('#batches figure')")
    model = client.model()
    cost = model.execution.cost
    *_, longest = table(page, "#cost-table")
    n = model.max_tokens
    seconds = cost.launch_s + (cost.token_s + cost.padded_row_s) * 3 * n + cost.cell_s * 3 * n * n
    assert longest[0] == str(n)
    assert float(longest[4]) == pytest.approx(1000 * seconds, rel=0.01, abs=0.006)
    newest = page.texts("#batches figure:first-of-type strong")[0]
    assert re.match(r"3 sequences of 1 request, [\d.]+ ms", newest)
    lengths = client.encode(TEXTS).lengths
    titles = page.texts("#batches figure:first-of-type title")
    assert sorted(titles) == sorted(f"request {titles[0].split()[1]} {length} tokens" for length in lengths)
    packed, padded = lengths.sum(), len(lengths) * lengths.max()
    assert f"{packed} tokens packed, {padded} padded" in page.texts("#batches figcaption")[0]


def test_the_models_are_shown_with_their_self_check(open_tab: OpenTab, client: Client) -> None:
    page = open_tab(client, "models")
    page.wait_for("document.querySelector('#models article')")
    assert page.texts("#models h2") == ["tiny-text, version 1 ready"]
    check = client.model().execution.self_check
    rows = {row[0]: row[1:] for row in table(page, "#models")}
    assert float(rows["pooled vectors, largest difference"][0]) == pytest.approx(check.pooled_max_abs, rel=0.06)
    assert rows["smallest cosine"][0] == f"{check.min_cosine:.7f}"
    assert float(rows["pooled vectors, largest difference"][2]) == 1e-5


def test_the_message_of_the_server_stands_near_the_text(open_tab: OpenTab, client: Client) -> None:
    page = open_attention(open_tab, client)
    page.type_text("#attention-input", "bread " * 40)
    page.wait_for("document.querySelector('#attention-error').textContent.includes('32')")
    assert not page.evaluate("document.querySelector('#attention-error').hidden")
    assert page.evaluate("document.querySelector('#attention-result').hidden")
    page.type_text("#attention-input", "bread")
    page.wait_for("!document.querySelector('#attention-result').hidden")
    assert page.evaluate("document.querySelector('#attention-error').hidden")
    # The browser itself logs the status of the refused call.
    assert page.errors.pop().startswith("Failed to load resource: the server responded with a status of 400")


def test_texts_and_names_are_never_read_as_html(open_tab: OpenTab) -> None:
    fake = FakeEncoder(model=HTML, labels=[HTML, "b"])
    with Client(transport=fake) as client:
        page = open_tab(client, "attention", f"{HTML} \x00 \u202e &amp;")
        page.wait_for("document.querySelector('#context svg')")
        assert HTML.split()[0] in page.texts("#chips bdi")
        page.evaluate(f"document.querySelector('#similarity-input').value = {json.dumps(HTML)}")
        for tab, wanted in (("similarity", ".cosines"), ("models", "#models article")):
            page.click(f"#tab-{tab}")
            page.wait_for(f"document.querySelector('{wanted}')")
        assert HTML in page.texts("#models article")[0]
        assert page.texts("#model option") == [HTML]
        assert page.evaluate("document.querySelectorAll('main img, main script').length") == 0
        assert page.evaluate("window.hacked") is None


def test_a_model_of_features_is_explained_in_words(open_tab: OpenTab) -> None:
    with Client(transport=FakeEncoder(vocabulary_size=0, feature_width=6)) as client:
        page = open_tab(client, "attention")
        page.wait_for("document.querySelector('#attention-error').textContent.includes('feature vectors of 6 numbers')")
        for tab in ("similarity", "latency"):
            page.click(f"#tab-{tab}")
            if tab == "latency":
                page.click("#latency-send")
            page.wait_for(f"document.querySelector('#{tab}-error').textContent.includes('feature vectors')")


def test_the_page_asks_for_the_weights_of_one_layer_at_a_time(open_tab: OpenTab) -> None:
    fake = FakeEncoder(layers=4)
    with Client(transport=fake) as client:
        page = open_attention(open_tab, client)
        page.choose("#layer", "3")
        page.wait_for("document.querySelector('#lines-title').textContent.includes('layer 3')")
        page.wait_for("document.querySelector('#context-title').textContent.includes('token 1')")
    requests = [request for request in fake.requests if isinstance(request, pb.AttendRequest)]
    assert {tuple(request.layers) for request in requests} == {(0,), (3,)}
    assert len(requests) == 4  # For each layer the weights, and then the context vector of one head.


def test_a_layer_that_is_too_large_for_one_reply_comes_in_several_calls(open_tab: OpenTab) -> None:
    words = 700
    fake = FakeEncoder(layers=1, heads=5, max_tokens=1024)
    with Client(transport=fake) as client:
        page = open_attention(open_tab, client, "a " * words)
        assert page.texts("#attention-status") == [f"{words + 2} tokens, weights of 5 heads"]
        page.choose("#head", "4")
        exact = client.attend("a " * words, layers=[0], heads=[4]).weights[0, 0, 1]
        np.testing.assert_allclose(shown_weights(page), exact, rtol=0, atol=0.51e-4)
    requests = [request for request in fake.requests if isinstance(request, pb.AttendRequest)]
    heads = [list(request.heads) for request in requests if not request.HasField("query")]
    assert [heads[0], *sorted(heads[1:3])] == [[0], [1, 2, 3], [4]]


def test_the_small_maps_are_drawn_once_for_a_frame_and_only_if_they_change(open_tab: OpenTab) -> None:
    with Client(transport=FakeEncoder(heads=4)) as client:
        page = open_attention(open_tab, client)
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
            next_frame(page)
            assert page.evaluate("window.maps") == drawn, act
        assert page.evaluate("[...document.querySelectorAll('#heads button')].map(each => each.ariaPressed)") == [
            "false",
            "false",
            "true",
            "false",
        ]


def test_the_last_batches_come_back_after_a_failed_reading(open_tab: OpenTab, client: Client) -> None:
    client.encode(TEXTS)
    page = open_tab(client, "cost")
    page.wait_for("document.querySelector('#batches figure')")
    page.evaluate("window.answered = fetch; fetch = () => Promise.reject(new TypeError('no network')); undefined")
    page.wait_for("!document.querySelector('#batches-error').hidden")
    page.evaluate("fetch = window.answered; undefined")
    page.wait_for("document.querySelector('#batches-error').hidden")


def test_the_servers_own_page_asks_for_the_token_and_shows_the_server_now(open_signed_out: OpenSignedOut) -> None:
    page = open_signed_out("latency")
    sign_in(page, "wrong")
    page.wait_for("document.querySelector('#token').value === '' && !document.querySelector('#sign-in').hidden")
    sign_in(page, TOKEN)
    page.wait_for("document.querySelector('#model-summary').textContent")
    assert page.evaluate("document.querySelector('#sign-in').hidden && document.querySelector('#page-error').hidden")
    assert page.evaluate("[document.cookie, localStorage.length, sessionStorage.length]") == ["", 0, 0]
    page.wait_for("document.querySelector('.tile polyline')")
    assert len(page.texts(".tile b")) == 4


@pytest.mark.parametrize("tab", LOADED)
def test_each_tab_of_the_servers_own_page_works_after_the_sign_in(tab: str, open_signed_out: OpenSignedOut) -> None:
    page = open_signed_out(tab)
    if tab in ("attention", "similarity"):
        page.evaluate(f"document.querySelector('#{tab}-input').value = 'bread'")
    sign_in(page, TOKEN)
    page.wait_for("document.querySelector('#model-summary').textContent")
    if tab == "latency":
        page.choose("#latency-sequences", "2")
        page.click("#latency-send")
    page.wait_for(f"document.querySelector('{LOADED[tab]}')")
    assert page.texts(".error:not([hidden], :empty)") == []
    assert page.evaluate("document.querySelector('#sign-in').hidden")


def sign_in(page: Page, token: str) -> None:
    """Type a token into the form, and send it."""
    page.type_text("#token", token)
    page.click("#sign-in button")
