"""What the tab of attention opens with: the head that the page finds, the grid of all heads, examples and words."""

import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from headwaiter_client import Client
from testbed.chromium import Browser, Page
from testbed.server_process import RunningServer
from tests.e2e.playground.conftest import OpenTab, next_frame, page_server
from tests.support.playground.looking_encoder import LookingEncoder, Looks

TEXT = "the dog sees that the cat sleeps"  # [CLS] the dog sees that the cat sleeps [SEP]
LOOKS: Looks = {
    (0, 0): {(6, 5): 0.9, (3, 2): 0.9},  # A neighbour.
    (0, 1): {(8, 2): 0.8, (7, 0): 0.8},  # Separators.
    (0, 2): {(5, 1): 0.7},  # The same word.
    (1, 0): {(2, 7): 0.65},  # A later word.
    (1, 2): {(7, 2): 0.6},
}


def bottoms(page: Page, *selectors: str) -> list[float]:
    """Return where elements end, in pixels below the top of the window."""
    ends: list[float] = page.evaluate(
        f"{json.dumps(selectors)}.map(each => document.querySelector(each).getBoundingClientRect().bottom)"
    )
    return ends


def titles(page: Page) -> list[str]:
    """Return the names of the heads in the order of the grid."""
    found: list[str] = page.evaluate("[...document.querySelectorAll('#heads button')].map(each => each.title)")
    return found


def point_at(page: Page, selector: str) -> None:
    """Move the mouse over an element."""
    box = page.evaluate(f"document.querySelector({json.dumps(selector)}).getBoundingClientRect().toJSON()")
    place = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
    page.send("Input.dispatchMouseEvent", type="mouseMoved", **place)
    next_frame(page)


@pytest.fixture(scope="module")
def real_client(real_server: RunningServer) -> Iterator[Client]:
    with Client(real_server.address) as client:
        yield client


@pytest.fixture
def page(open_tab: OpenTab) -> Page:
    """The tab of a model that looks as LOOKS says."""
    opened = open_tab(LookingEncoder(LOOKS), "attention", TEXT)
    opened.wait_for("document.querySelector('#context svg')")
    return opened


@pytest.mark.parametrize(("width", "height", "dark"), [(1280, 800, False), (390, 844, True)])
def test_the_first_screen_shows_a_head_in_which_it_looks_at_animal(
    width: int, height: int, dark: bool, chromium: Browser, real_client: Client
) -> None:
    with page_server(real_client) as server:
        page = chromium.open(server.url, width, height, dark=dark)
        try:
            page.wait_for("document.querySelector('#context svg')")
            text = page.evaluate("document.querySelector('#attention-input').value")
            attention = real_client.attend(text)
            query, key = attention.tokens.index("it"), attention.tokens.index("animal")
            weights = attention.weights[:, :, query, key]
            layer, head = np.unravel_index(weights.argmax(), weights.shape)
            assert page.texts("#finding") == ["it looks at animal"]
            facts = " ".join(page.texts(".finding-words p")[0].split())
            assert facts == f"Layer {layer}, head {head}, weight {weights.max():.2f}."
            assert (
                "of 72 heads, it has the largest weight from a word to another word" in page.texts("#finding-rule")[0]
            )
            assert page.texts("#chips [aria-pressed=true] bdi") == ["it"]
            assert len(titles(page)) == 72
            assert max(bottoms(page, "#attention-input", "#finding", "#chips", "#lines svg", "#heads")) <= height
            # Three files of the page, the models, the weights of all heads, those of two heads that are nearly equal,
            # and the vectors of one head.
            assert len(set(page.urls)) == 9
            assert page.errors == []
        finally:
            page.close()


def real_tokens(client: Client, text: str) -> tuple[list[str], NDArray[Any]]:
    attention = client.attend(text)
    return attention.tokens, attention.weights.astype(np.float64)


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("Previous token", lambda q, k, tokens: q == k + 1 and "[" not in tokens[q] + tokens[k]),
        ("Same word", lambda q, k, tokens: q != k and tokens[q] == tokens[k]),
        ("Separator", lambda q, k, tokens: tokens[k][0] == "[" != tokens[q][0]),
    ],
)
def test_an_example_opens_its_text_and_the_head_that_shows_it_best(
    name: str, counts: Any, open_tab: OpenTab, real_client: Client
) -> None:
    page = open_tab(real_client, "attention", "bread")
    page.wait_for("document.querySelector('#context svg')")
    page.click("#causal")
    number = page.texts("#examples b").index(name) + 1
    page.evaluate(f"document.querySelector('#examples button:nth-child({number})').focus()")
    page.press("Enter")
    words = page.texts("#examples .hint")[number - 1]
    page.wait_for(f"document.querySelector('#finding-rule').textContent.startsWith({json.dumps(words)})")
    tokens, weights = real_tokens(real_client, page.evaluate("document.querySelector('#attention-input').value"))
    mask = np.array([[counts(q, k, tokens) for k in range(len(tokens))] for q in range(len(tokens))])
    layer, head = np.unravel_index((weights * mask).sum((2, 3)).argmax(), weights.shape[:2])
    page.wait_for(f"document.querySelector('#context-title').textContent.endsWith('layer {layer}, head {head}')")
    query = int((weights * mask)[layer, head].max(1).argmax())
    page.wait_for(f"document.querySelectorAll('#chips button')[{query}].ariaPressed === 'true'")
    assert page.evaluate("document.querySelectorAll('#chips [aria-pressed=true]').length") == 1
    assert page.texts("#finding em")[0] == tokens[query]
    # The example shows the weights of the model.
    assert not page.evaluate("document.querySelector('#causal').checked")
    assert page.texts("#chips small") == [f"{weight:.4f}" for weight in weights[layer, head, query]]


def test_the_page_opens_the_largest_weight_to_an_earlier_word(page: Page) -> None:
    assert page.texts("#finding") == ["sleeps looks at dog"]
    assert " ".join(page.texts(".finding-words p")[0].split()) == "Layer 1, head 2, weight 0.60."
    assert "of 6 heads" in page.texts("#finding-rule")[0]
    # The user's own choice has no rule, and another model has one again.
    page.click("#heads button[title='Layer 1, head 0']")
    next_frame(page)
    assert not page.evaluate("document.querySelector('#finding-rule').checkVisibility()")


def test_a_text_without_two_words_that_are_far_apart_opens_its_largest_weight(open_tab: OpenTab) -> None:
    page = open_tab(LookingEncoder({(1, 1): {(1, 2): 0.75}}), "attention", "two words")
    page.wait_for("document.querySelector('#context svg')")
    assert page.texts("#finding") == ["two looks at words"]
    assert "from a token to another one" in page.texts("#finding-rule")[0]


def test_the_mouse_over_a_word_shows_its_lines_and_no_call_is_made(page: Page) -> None:
    calls = sum("Attend" in url for url in page.urls)
    point_at(page, "#chips button:nth-child(9)")
    assert page.texts("#lines-title") == ["Weights of token 8 “[SEP]”, layer 1, head 2"]
    assert page.texts("#finding") == ["[SEP] looks most at [CLS]"]  # All weights are equal.
    assert page.texts("#chips small") == [f"{1 / 9:.4f}"] * 9
    assert page.texts("#chips [aria-pressed=true] bdi") == ["sleeps"]
    point_at(page, "#finding-rule")
    assert page.texts("#finding") == ["sleeps looks at dog"]
    assert sum("Attend" in url for url in page.urls) == calls


def test_heads_are_found_by_two_tokens_with_the_keyboard(page: Page) -> None:
    page.choose("#find-query", "7")
    page.choose("#find-key", "0")
    page.evaluate("document.querySelector('#find button:last-child').focus()")
    page.press("Enter")
    page.wait_for("document.querySelector('#context-title').textContent.endsWith('layer 0, head 1')")
    assert page.texts("#finding") == ["sleeps looks at [CLS]"]
    weights = ["0.80", *["0.11"] * 4, "0.05"]
    assert page.texts("#heads small") == weights
    places = ["Layer 0, head 1", "Layer 0, head 0", "Layer 0, head 2", "Layer 1, head 0", "Layer 1, head 1"]
    assert titles(page) == [
        f"{place}: {weight}" for place, weight in zip([*places, "Layer 1, head 2"], weights, strict=True)
    ]
    # The grid is one stop of the Tab key; an arrow key chooses the next head.
    assert page.evaluate("document.querySelectorAll('#heads [tabindex=\"0\"]').length") == 1
    page.evaluate("document.querySelector('#heads [tabindex=\"0\"]').focus()")
    page.press("ArrowRight")
    assert page.evaluate("document.activeElement.title") == "Layer 0, head 0: 0.11"
    page.wait_for("document.querySelector('#context-title').textContent.endsWith('layer 0, head 0')")


@pytest.mark.parametrize("order", ["entropy", "distance", "separators"])
def test_heads_are_sorted_by_a_number(order: str, page: Page) -> None:
    numbers = {}
    for layer in range(2):
        for head in range(3):
            weights = np.full((9, 9), 1 / 9)
            for (query, key), weight in LOOKS.get((layer, head), {}).items():
                weights[query] = (1 - weight) / 8
                weights[query, key] = weight
            distances = np.abs(np.subtract.outer(np.arange(9), np.arange(9)))
            numbers[layer, head] = {
                "entropy": -(weights * np.log2(weights)).sum(1).mean(),
                "distance": -(weights * distances).sum(1).mean(),
                "separators": -weights[:, [0, 8]].sum(1).mean(),
            }[order]
    page.choose("#order", order)
    # Numbers in float32 may rank equal heads in another order.
    shown = [re.findall(r"\d+(?:\.\d+)?", title) for title in titles(page)]
    ranked = [numbers[int(layer), int(head)] for layer, head, _ in shown]
    np.testing.assert_allclose(ranked, sorted(ranked), rtol=0, atol=1e-6)
    # Rounded weights may change the last digit by one.
    last_digit = 0.1 if order == "distance" else 0.01
    np.testing.assert_allclose([float(number) for *_, number in shown], np.abs(ranked), rtol=0, atol=1.51 * last_digit)
    assert {len(number.partition(".")[2]) for *_, number in shown} == {1 if order == "distance" else 2}
    page.choose("#order", "model")
    assert titles(page) == [f"Layer {layer}, head {head}" for layer in range(2) for head in range(3)]


def test_separators_are_dimmed_on_request(page: Page) -> None:
    page.click("#heads button[title='Layer 0, head 1']")
    page.wait_for("document.querySelector('#finding').textContent === 'sleeps looks at [CLS]'")
    widths = "[...document.querySelectorAll('#lines path')].map(line => Number(line.getAttribute('stroke-width')))"
    colours = "[...document.querySelectorAll('#chips button')].map(chip => chip.style.backgroundColor)"
    before = page.evaluate(colours)
    assert np.argmax(page.evaluate(widths)) == 0
    page.click("#dim")
    next_frame(page)
    assert page.evaluate(widths) == [0.5, *[9] * 7, 0.5]
    after = page.evaluate(colours)
    assert [one == other for one, other in zip(before, after, strict=True)] == [False, *[True] * 7, False]
    assert page.texts("#finding") == ["sleeps looks most at the"]
    # The numbers stay those of the model.
    assert page.texts("#lines .weight") == page.texts("#chips small") == ["0.8000", *["0.0250"] * 8]


def test_words_are_explained_where_they_stand(page: Page) -> None:
    for word in ("head", "query", "key", "row"):
        page.evaluate(f"document.querySelector('[popovertarget=term-{word}]').focus()")
        assert not page.evaluate(f"document.querySelector('#term-{word}').checkVisibility()")
        page.press("Enter")
        assert page.evaluate(f"document.querySelector('#term-{word}').checkVisibility()")
        assert page.texts(f"#term-{word} b") == [word]


def test_a_button_crosses_out_the_chosen_token(page: Page) -> None:
    page.click("#cross-out")
    next_frame(page)
    assert page.texts("#chips .crossed-out bdi") == ["sleeps"]


def test_a_single_token_says_nothing_of_how_its_head_was_chosen(chromium: Browser) -> None:
    with Client(transport=LookingEncoder({})) as client, page_server(client) as server:
        page = chromium.open(f"{server.url}#attention?kind=tokens&text=7")
        page.wait_for("document.querySelectorAll('#chips button').length === 1 && document.querySelector('#lines svg')")
        assert page.texts("#finding") == ["7 looks at itself"]
        assert page.texts("#finding-rule") == [""]
        page.close()
