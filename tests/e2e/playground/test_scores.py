"""The tabs Rerank and Classify in Chromium: scores and weights equal those of the client, and fit on each screen."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from headwaiter_client import Client
from testbed.chromium import Browser, Page
from testbed.server_process import running_server
from tests.e2e.playground.conftest import OpenTab, check_link_and_reload, next_frame, table
from tests.e2e.playground.test_copied_calls import copied, reply_of
from tests.support.e2e.classifiers import export_classifier, save_classifier
from tests.support.playground.accessibility import problems
from tests.support.shared_folders import SharedFolders

QUERY = "rain on bread"
DOCUMENTS = ["the rain falls on stone", "fresh bread", "a table for two please", "bread is fresh on the table"]


@contextmanager
def served(kind: str, labels: int, folders: SharedFolders) -> Iterator[Client]:
    """Serve a random BERT of a class of transformers with a head of so many labels, and connect to the server."""

    def make(folder: Path) -> None:
        folder.mkdir()
        save_classifier(folder, kind, labels)
        export_classifier(folder, folder / "bundle")

    bundle = folders.get(f"playground-{kind}-{labels}", make) / "bundle"
    with running_server(bundle, ["--provider", "cpu"]) as server, Client(server.address) as client:
        yield client


@pytest.fixture(scope="module")
def reranker(shared_folders: SharedFolders) -> Iterator[Client]:
    with served("BertForSequenceClassification", 1, shared_folders) as client:
        yield client


@pytest.fixture(scope="module")
def classifier(shared_folders: SharedFolders) -> Iterator[Client]:
    with served("BertForSequenceClassification", 3, shared_folders) as client:
        yield client


@pytest.fixture(scope="module")
def tagger(shared_folders: SharedFolders) -> Iterator[Client]:
    with served("BertForTokenClassification", 3, shared_folders) as client:
        yield client


def offered(page: Page) -> list[str]:
    return page.texts("[role=tab]:not([hidden])")


def open_ranking(open_tab: OpenTab, client: Client, width: int = 1280, dark: bool = False) -> Page:
    page = open_tab(client, "models", width=width, dark=dark)
    page.evaluate(f"document.querySelector('#rerank-query').value = '{QUERY}'")
    page.evaluate(f"document.querySelector('#rerank-input').value = {DOCUMENTS!r}.join('\\n')")
    page.click("#tab-rerank")
    page.wait_for("document.querySelector('#pair-table td')")
    return page


def test_a_reranker_has_its_tab_and_ranks_as_the_client_does(open_tab: OpenTab, reranker: Client) -> None:
    page = open_ranking(open_tab, reranker)
    assert "Rerank" in offered(page)
    assert "Classify" not in offered(page)
    expected = reranker.rerank(QUERY, DOCUMENTS)
    rows = table(page, "#ranking")
    assert [row[0] for row in rows] == [each.document for each in expected.documents]
    assert [row[1] for row in rows] == [f"{each.score:.4f}" for each in expected.documents]


def test_a_pair_shows_the_attention_of_client_attend(open_tab: OpenTab, reranker: Client) -> None:
    page = open_ranking(open_tab, reranker)
    best = reranker.rerank(QUERY, DOCUMENTS).documents[0].document
    attention = reranker.attend((QUERY, best))
    begin = attention.tokens.index("[SEP]") + 1
    across = attention.weights[0, :, :begin, begin:].sum(axis=(1, 2)) / begin
    # At first, the head that looks across the most, and the first token of the query.
    assert page.evaluate("Number(document.querySelector('#pair-head').value)") == across.argmax()
    shares = [float(text.split()[2]) for text in page.texts("#pair-head option")]
    np.testing.assert_allclose(shares, 100 * across, rtol=0, atol=0.51)
    assert page.texts("#pair-first bdi") == attention.tokens[:begin]
    assert page.texts("#pair-second bdi") == attention.tokens[begin:]

    def shown() -> list[str]:
        next_frame(page)
        return [row[2] for row in table(page, "#pair-table")]

    head = int(across.argmax())
    assert shown() == [f"{weight:.4f}" for weight in attention.weights[0, head, 1, begin:]]
    assert page.texts("#pair-second small") == shown()
    # From a token of the document to the query, in another layer and head.
    page.choose("#pair-layer", "1")
    page.wait_for("document.querySelector('#pair-title').textContent.includes('layer 1')")
    page.choose("#pair-head", "2")
    page.click("#pair-second button:nth-child(2)")
    next_frame(page)
    assert shown() == [f"{weight:.4f}" for weight in attention.weights[1, 2, begin + 1, :begin]]
    share = attention.weights[1, 2, begin + 1, :begin].sum()
    assert f"They add up to {share:.4f}" in page.texts("#pair-table caption")[0]


def test_a_document_may_begin_with_the_text_of_a_separator(open_tab: OpenTab, reranker: Client) -> None:
    page = open_ranking(open_tab, reranker)
    page.type_text("#rerank-input", "[SEP] fresh bread")
    page.wait_for("document.querySelectorAll('#ranking tbody tr').length === 1")
    tokens = reranker.attend((QUERY, "[SEP] fresh bread")).tokens
    begin = tokens.index("[SEP]") + 1
    assert tokens[begin] == "[SEP]"
    page.wait_for(f"document.querySelectorAll('#pair-second bdi').length === {len(tokens) - begin}")
    assert page.texts("#pair-first bdi") == tokens[:begin]
    assert page.texts("#pair-second bdi") == tokens[begin:]


@pytest.mark.parametrize("form", ["curl", "python"])
def test_the_copied_call_of_texts_to_classify_runs(form: str, open_tab: OpenTab, classifier: Client) -> None:
    page = open_tab(classifier, "classify", 'rain it\'s "falls" 😀\nfresh bread')
    page.wait_for("document.querySelector('#classify-result article')")
    reply = reply_of(form, copied(page, form))
    scores = np.frombuffer(base64.b64decode(reply["scores"]["data"]), "<f4").reshape(2, 3)
    assert page.texts("#classify-result td:nth-child(2)") == [
        f"{score:.4f}" for row in scores for score in -np.sort(-row)
    ]
    assert page.evaluate("document.querySelector('#copy-openai').hidden")


def test_a_link_holds_the_ranking_and_its_pair(open_tab: OpenTab, chromium: Browser, reranker: Client) -> None:
    page = open_ranking(open_tab, reranker)
    page.click("#ranking tbody tr:last-child button")
    page.choose("#pair-layer", "1")
    page.wait_for("document.querySelector('#pair-title').textContent.includes('layer 1')")
    for head in ("1", "2"):
        page.choose("#pair-head", head)
        page.wait_for(f"location.hash.includes('head={head}')")
    page.click("#pair-second button:nth-child(2)")
    page.wait_for("document.querySelector('#pair-second [aria-pressed=true]')")
    next_frame(page)
    title = page.texts("#pair-title")[0]
    page.wait_for(f"location.hash.includes('token={title.split()[5]}')")
    check_link_and_reload(
        chromium, page, "#pair-title, #ranking tr, #ranking [aria-pressed=true], #pair-table td, #pair-head option"
    )
    assert page.evaluate("document.querySelector('#rerank-query').value") == QUERY
    page.evaluate("history.go(-2)")
    page.wait_for("document.querySelector('#pair-title').textContent.endsWith('layer 1, head 1')")


def test_a_link_holds_the_texts_to_classify(open_tab: OpenTab, chromium: Browser, classifier: Client) -> None:
    page = open_tab(classifier, "classify", "rain falls\nfresh bread")
    page.wait_for("document.querySelector('#classify-result article')")
    alone = page.texts("#classify-result")[0]
    page.type_text("#classify-second", "on stone")
    page.wait_for(f"document.querySelector('#classify-result').textContent !== {json.dumps(alone)}")
    page.wait_for("location.hash.includes('second=on+stone')")
    check_link_and_reload(chromium, page, "#classify-result")
    assert page.evaluate("document.querySelector('#classify-second').value") == "on stone"


def test_a_document_is_chosen_with_the_keyboard(open_tab: OpenTab, reranker: Client) -> None:
    page = open_ranking(open_tab, reranker)
    last = reranker.rerank(QUERY, DOCUMENTS).documents[-1].document
    page.evaluate("[...document.querySelectorAll('.pair')].at(-1).focus()")
    page.press(" ")
    tokens = reranker.attend((QUERY, last)).tokens
    expected = tokens[tokens.index("[SEP]") + 1 :]
    page.wait_for(
        "JSON.stringify([...document.querySelectorAll('#pair-second bdi')].map(each => each.textContent))"
        f" === JSON.stringify({expected!r})"
    )
    assert page.texts(".pair[aria-pressed=true]") == [last]
    assert page.evaluate("document.activeElement.textContent") == last
    page.evaluate("document.querySelector('#pair-second button').focus()")
    page.press("ArrowRight")
    next_frame(page)
    assert page.texts("#pair-second [aria-pressed=true] bdi") == expected[1:2]
    assert page.texts("#pair-first [aria-pressed=true]") == []


def test_a_classifier_shows_its_labels_by_score(open_tab: OpenTab, classifier: Client) -> None:
    page = open_tab(classifier, "classify", "\n".join(DOCUMENTS))
    page.wait_for("document.querySelectorAll('#classify-result article').length === 4")
    assert "Classify" in offered(page)
    assert "Rerank" not in offered(page)
    result = classifier.classify(DOCUMENTS)
    for index, scores in enumerate(result.scores):
        rows = table(page, f"#classify-result article:nth-child({index + 1})")
        order = np.argsort(-scores)
        assert [row[0] for row in rows] == [result.labels[label] for label in order]
        assert [row[1] for row in rows] == [f"{scores[label]:.4f}" for label in order]
    bar = page.evaluate("document.querySelector('.score-bar i').style.width")
    assert float(bar.removesuffix("%")) == pytest.approx(100 * result.scores[0].max(), rel=1e-4)
    assert "add up to 1" in page.texts("#classify-status")[0]
    # A second text makes pairs.
    page.type_text("#classify-second", QUERY)
    pairs = classifier.classify([(text, QUERY) for text in DOCUMENTS]).scores
    page.wait_for(f"document.querySelector('#classify-result tbody td').textContent === '{pairs[0].max():.4f}'")


def test_a_model_of_tokens_labels_the_words(open_tab: OpenTab, tagger: Client) -> None:
    text = "rain falls on tables"
    page = open_tab(tagger, "classify", text)
    page.wait_for("document.querySelector('.labelled')")
    result = tagger.classify([text], offsets=True)
    (scores,), (offsets,) = result.token_scores, result.offsets
    named = [
        (text[begin:end], result.labels[row.argmax()], f"{row.max():.4f}")
        for row, (begin, end) in zip(scores, offsets, strict=True)
        if end > begin
    ]
    assert [word for word, _, _ in named] == ["rain", "falls", "on", "table", "s"]
    assert [tuple(row[1:]) for row in table(page, ".labelled + details")] == named
    assert page.texts(".labelled mark") == [word + label for word, label, _ in named]


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_the_tabs_of_scores_are_accessible(
    width: int, dark: bool, axe: str, open_tab: OpenTab, reranker: Client, tagger: Client
) -> None:
    page = open_ranking(open_tab, reranker, width, dark)
    page.evaluate(axe)
    assert problems(page, width) == []
    page = open_tab(tagger, "classify", "\n".join(DOCUMENTS), width=width, dark=dark)
    page.wait_for("document.querySelector('.labelled')")
    page.evaluate("document.querySelector('#classify-result details').open = true")
    page.evaluate(axe)
    assert problems(page, width) == []
