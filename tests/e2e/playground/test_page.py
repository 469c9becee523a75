"""The playground in Chromium: what the other tabs show equals what the server answers."""

import json
import re

import numpy as np
import pytest

from headwaiter_client import Client, FakeEncoder
from headwaiter_proto import encoder_pb2 as pb
from testbed.chromium import Page
from tests.e2e.playground.conftest import LOADED, TOKEN, OpenSignedOut, OpenTab, next_frame, table
from tests.support.playground.changing_server import ChangingServer

TEXTS = ["the bread is fresh", "rain falls on stone", "a table for two please"]
HTML = "<img src=x onerror=window.hacked=1><script>window.hacked=1</script>"


def test_the_matrix_holds_the_cosines_of_client_encode(open_tab: OpenTab, client: Client) -> None:
    page = open_tab(client, "similarity", "\n".join(TEXTS))
    page.wait_for("document.querySelector('.cosines')")
    # There is room for the numbers, also the first time.
    assert page.texts(".cosines .for-readers") == []
    pooled = client.encode(TEXTS).pooled
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
    # The browser tells the times of a request a little after its reply.
    page.wait_for("document.querySelectorAll('#stages-table tbody tr').length === 3")
    rows = table(page, "#stages-table")
    assert [row[:3] for row in rows] == [[f"{number} Encode", "tiny-text", "2"] for number in (3, 2, 1)]
    for row in rows:
        *stages, total = (float(cell) for cell in row[3:])
        assert sum(stages) == pytest.approx(total, rel=0.02, abs=0.05)
        assert min(stages) >= 0
        assert stages[3] > 0  # compute
    assert len(page.evaluate("[...document.querySelectorAll('#stages rect')].map(bar => bar.outerHTML)")) == 3 * 7
    page.wait_for("document.querySelector('#live-note').textContent.includes('no metrics')")


def test_a_run_of_own_texts_tells_its_percentiles_and_its_link_repeats_it(open_tab: OpenTab) -> None:
    server = ChangingServer(fake=FakeEncoder())
    server.delays_s["Encode"] = 0.1
    page = open_tab(server, "latency")
    page.type_text("#latency-input", "the bread\n\nrain & stone")
    assert page.evaluate("document.querySelector('#latency-words').disabled")
    page.choose("#latency-requests", "12")
    page.choose("#latency-concurrency", "4")
    page.click("#latency-send")
    page.wait_for("document.querySelectorAll('#latency-percentiles b').length === 3")
    assert page.texts("#latency-status") == ["12 of 12 requests answered."]
    texts = [pb.EncodeRequest.FromString(raw).texts.values for name, raw in server.calls if name == "Encode"]
    assert texts == [["the bread", "rain & stone"]] * 12
    times = [float(text.removesuffix(" ms")) for text in page.texts("#latency-percentiles b")]
    assert times == sorted(times)
    assert times[0] >= 100
    assert page.texts("#latency-percentiles .tile")[0].startswith("p50 of 12 requests to fake")
    page.wait_for("document.querySelectorAll('#stages-table tbody tr').length === 12")
    page.wait_for("location.hash.includes('concurrency=4')")
    link = page.evaluate("location.hash")
    page.click("#tab-models")
    page.wait_for("location.hash.startsWith('#models')")
    page.type_text("#latency-input", "")
    page.evaluate(f"location.hash = {json.dumps(link)}")
    page.wait_for("document.querySelector('#latency-input').value === 'the bread\\n\\nrain & stone'")
    fields = "['requests', 'concurrency'].map(name => document.querySelector(`#latency-${name}`).value)"
    assert page.evaluate(fields) == ["12", "4"]
    server.delays_s["Encode"] = 1.0
    page.click("#latency-send")
    page.wait_for("!document.querySelector('#latency-cancel').hidden")
    page.click("#latency-cancel")
    page.wait_for("document.querySelector('#latency-status').textContent.endsWith('answered; cancelled.')")
    assert page.texts("#latency-error:not([hidden])") == []


def test_the_batches_are_those_that_ran(open_tab: OpenTab, client: Client) -> None:
    lengths = client.encode(TEXTS).lengths
    page = open_tab(client, "cost")
    page.wait_for("document.querySelector('#batches figure')")
    newest = page.texts("#batches figure:first-of-type strong")[0]
    assert re.match(r"3 sequences of 1 request, [\d.]+ ms", newest)
    titles = page.texts("#batches figure:first-of-type title")
    assert sorted(titles) == sorted(f"request {titles[0].split()[1]} {length} tokens" for length in lengths)
    packed, padded = lengths.sum(), len(lengths) * lengths.max()
    assert f"{packed} tokens packed, {padded} padded" in page.texts("#batches figcaption")[0]


def test_the_models_are_shown_with_their_self_check(open_tab: OpenTab, client: Client) -> None:
    page = open_tab(client, "models")
    page.wait_for("document.querySelector('#model-cards article')")
    assert page.texts("#model-cards h2") == ["tiny-text, version 1 ready"]
    check = client.model().execution.self_check
    rows = {row[0]: row[1:] for row in table(page, "#model-cards")}
    assert float(rows["pooled vectors, largest difference"][0]) == pytest.approx(check.pooled_max_abs, rel=0.06)
    assert rows["smallest cosine"][0] == f"{check.min_cosine:.7f}"
    assert float(rows["pooled vectors, largest difference"][2]) == 1e-5


def test_texts_and_names_are_never_read_as_html(open_tab: OpenTab) -> None:
    fake = FakeEncoder(model=HTML, labels=[HTML, "b"])
    page = open_tab(fake, "attention", f"{HTML} \x00 \u202e &amp;")
    page.wait_for("document.querySelector('#context svg')")
    assert HTML.split()[0] in page.texts("#chips bdi")
    page.evaluate(f"document.querySelector('#similarity-input').value = {json.dumps(HTML)}")
    for tab, wanted in (("similarity", ".cosines"), ("models", "#model-cards article")):
        page.click(f"#tab-{tab}")
        page.wait_for(f"document.querySelector('{wanted}')")
    assert HTML in page.texts("#model-cards article")[0]
    assert page.texts("#model option") == [HTML]
    assert page.evaluate("document.querySelectorAll('main img, main script').length") == 0
    assert page.evaluate("window.hacked") is None


def test_the_servers_own_page_asks_for_the_token_and_shows_the_server_now(open_signed_out: OpenSignedOut) -> None:
    page = open_signed_out("latency")
    sign_in(page, "wrong")
    page.wait_for("document.querySelector('#token').value === '' && !document.querySelector('#sign-in').hidden")
    sign_in(page, TOKEN)
    page.wait_for("document.querySelector('#model-summary').textContent")
    assert page.evaluate("document.querySelector('#sign-in').hidden && document.querySelector('#page-error').hidden")
    assert page.evaluate("[document.cookie, localStorage.length, sessionStorage.length]") == ["", 0, 0]
    page.wait_for("document.querySelector('.tile path')")
    assert len(page.texts(".tile b")) == 4


@pytest.mark.parametrize("tab", LOADED)
def test_each_tab_of_the_servers_own_page_works_after_the_sign_in(tab: str, open_signed_out: OpenSignedOut) -> None:
    page = open_signed_out(tab)
    if tab in ("attention", "similarity"):
        # The page fetches all tabs but the first after it has loaded.
        page.wait_for(f"document.querySelector('#{tab}-input')")
        page.evaluate(f"document.querySelector('#{tab}-input').value = 'bread'")
    sign_in(page, TOKEN)
    page.wait_for("document.querySelector('#model-summary').textContent")
    if tab == "latency":
        page.choose("#latency-sequences", "2")
        page.click("#latency-send")
    page.wait_for(f"document.querySelector('{LOADED[tab]}')")
    assert page.texts(".error:not([hidden], :empty)") == []
    assert page.evaluate("document.querySelector('#sign-in').hidden")


def test_a_second_sign_in_keeps_what_the_user_has_chosen(open_signed_out: OpenSignedOut) -> None:
    page = open_signed_out("models")
    sign_in(page, TOKEN)
    page.wait_for("document.querySelector('#model-summary').textContent")
    page.evaluate("document.querySelector('#attention-input').value = 'bread is fresh'")
    page.click("#tab-attention")
    page.wait_for("document.querySelector('#context svg')")
    page.click("#heads button[title='Layer 1, head 2']")
    page.wait_for("document.querySelector('#context-title').textContent.includes('layer 1')")
    # The operator has changed the token: the next call is refused.
    page.evaluate(
        "window.answered = fetch; fetch = async () => { fetch = window.answered;"
        'return new Response(\'{"message": "the token is old"}\', { status: 401 }); }; undefined'
    )
    page.click("#chips button:nth-child(4)")
    page.wait_for("document.querySelector('#token-error').textContent === 'the token is old'")
    sign_in(page, TOKEN)
    page.wait_for("document.querySelector('#context-title').textContent.includes('token 3 “fresh”, layer 1, head 2')")
    assert page.evaluate("[document.querySelector('#layer').value, document.querySelector('#head').value]") == [
        "1",
        "2",
    ]


def test_the_matrix_of_forty_texts_fits(open_tab: OpenTab) -> None:
    for width in (1280, 390):
        page = open_tab(
            FakeEncoder(max_request_sequences=64),
            "similarity",
            "\n".join(f"text {number}" for number in range(40)),
            width=width,
        )
        page.wait_for("document.querySelector('.cosines')")
        next_frame(page)
        assert page.evaluate("(box => box.scrollWidth - box.clientWidth)(document.querySelector('#cosines'))") == 0
        assert page.evaluate("document.querySelector('.cosines td').clientWidth") >= 4
        assert page.evaluate("document.querySelector('.cosines tbody tr td').title") == "1 text 0 | 1 text 0: 1.000"
        assert page.texts("#similarity-status")[0].startswith("40 texts, ")


def sign_in(page: Page, token: str) -> None:
    """Type a token into the form, and send it."""
    page.type_text("#token", token)
    page.click("#sign-in button")
