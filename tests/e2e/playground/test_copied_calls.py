"""The copied call of each tab runs as it is: curl, Python, and OpenAI's client."""

import json
import os
import shutil
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from headwaiter_client import Client
from testbed.chromium import Browser, Page
from testbed.server_process import RunningServer
from tests.e2e.playground.conftest import TOKEN, OpenSignedOut, OpenTab, next_frame
from tests.e2e.playground.test_page import sign_in

TEXT = 'it\'s "the" bread: 5 \\ 2, $HOME `id` !x ü 😀'


def copied(page: Page, form: str) -> str:
    """Return what the page copies when the user clicks the button of a form."""
    page.evaluate("navigator.clipboard.writeText = async text => { window.clip = text }; window.clip = ''; undefined")
    page.click(f"#copy-{form}")
    page.wait_for("window.clip && document.querySelector('#copied-call').textContent === 'Copied.'")
    text: str = page.evaluate("window.clip")
    return text


def run(form: str, program: str) -> str:
    """Return what a copied program prints."""
    if form == "curl" and shutil.which("curl") is None:
        pytest.skip("curl is missing: install the package curl")
    command = ["bash"] if form == "curl" else [sys.executable]
    environment = {**os.environ, "HEADWAITER_TOKEN": TOKEN}
    return subprocess.run(
        command, input=program, capture_output=True, text=True, timeout=60, check=True, env=environment
    ).stdout


@pytest.mark.parametrize("form", ["curl", "python"])
def test_the_call_of_each_tab_runs(form: str, open_tab: OpenTab, client: Client) -> None:
    page = open_tab(client, "attention", TEXT)
    page.wait_for("document.querySelector('#context svg')")
    reply = reply_of(form, copied(page, form))
    assert reply["tokens"] == client.attend(TEXT, layers=[0]).tokens
    assert len(reply["context"]["data"]) > 0
    assert page.evaluate("document.querySelector('#copy-openai').hidden")
    page.evaluate(f"document.querySelector('#similarity-input').value = {json.dumps(TEXT)}")
    page.click("#tab-similarity")
    page.wait_for("document.querySelector('.cosines')")
    assert reply_of(form, copied(page, form))["lengths"] == [len(reply["tokens"])]
    page.click("#tab-latency")
    next_frame(page)
    assert page.evaluate("document.querySelector('#copy-call').hidden")
    page.choose("#latency-sequences", "2")
    page.click("#latency-send")
    page.wait_for("document.querySelector('#latency-status').textContent.includes('answered.')")
    assert len(reply_of(form, copied(page, form))["lengths"]) == 2
    page.click("#tab-cost")
    page.wait_for("document.querySelector('#batches figure')")
    assert reply_of(form, copied(page, form))["batches"]
    page.click("#tab-models")
    page.wait_for("document.querySelector('#model-cards article')")
    assert [model["name"] for model in reply_of(form, copied(page, form))["models"]] == ["tiny-text"]


def reply_of(form: str, program: str) -> dict[str, Any]:
    """Return the reply that a copied program prints: as JSON, or as Python prints a dict."""
    printed = run(form, program)
    reply: dict[str, Any] = json.loads(printed) if form == "curl" else eval(printed, {"__builtins__": {}})
    return reply


def test_the_token_is_taken_from_the_environment(open_signed_out: OpenSignedOut) -> None:
    page = open_signed_out("models")
    sign_in(page, TOKEN)
    page.wait_for("document.querySelector('#model-cards article') && !document.querySelector('#copy-call').hidden")
    for form in ("curl", "python"):
        program = copied(page, form)
        assert TOKEN not in program
        assert reply_of(form, program)["models"]


def test_openais_client_gives_the_vectors_of_the_tab(chromium: Browser, http_server: RunningServer) -> None:
    page = chromium.open(f"{http_server.metrics_url.removesuffix('metrics')}playground/#models")
    page.wait_for("document.querySelector('#model-cards article') && !document.querySelector('#copy-openai').hidden")
    assert "tiny-text" in run("openai", copied(page, "openai"))
    texts = [TEXT, "rain"]
    page.evaluate(f"document.querySelector('#similarity-input').value = {json.dumps(chr(10).join(texts))}")
    page.click("#tab-similarity")
    page.wait_for("document.querySelector('.cosines')")
    program = copied(page, "openai").replace("print(", "reply = (")
    shown = run("openai", f"{program}\nprint([each.embedding for each in reply.data])")
    with Client(http_server.address) as client:
        np.testing.assert_allclose(json.loads(shown), client.encode(texts).pooled, rtol=0, atol=1e-6)
    assert page.errors == []
    page.close()
