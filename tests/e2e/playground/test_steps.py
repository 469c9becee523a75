"""The steps of a head in Chromium: their numbers are those of numpy, from the vectors to the context vector."""

import re

import numpy as np
import pytest

from headwaiter_client import Client
from testbed.chromium import Page
from tests.e2e.playground.conftest import OpenTab, next_frame, show_token, table

TEXT = "the bread is fresh please"
# Half of the last digit that a title shows, and a little for float32.
ATOL = 0.6e-4


def column(page: Page, number: int) -> list[float]:
    """Return the last number in the titles of a column, one for each key; a masked one is -∞."""
    titles = page.evaluate(
        f"[...document.querySelectorAll('#steps tbody tr td:nth-child({number}) > span')].map(each => each.title)"
    )
    return [float(re.findall(r"-?[\d.]+|−∞", title)[-1].replace("−∞", "-inf")) for title in titles]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_the_steps_multiply_out(temperature: float, open_tab: OpenTab, client: Client) -> None:
    attention = client.attend(TEXT, layers=[1], heads=[2], query=4, vectors=True)
    q, k, v = (
        np.asarray(each, np.float64)
        for each in (attention.vectors.query_vector, attention.vectors.keys, attention.vectors.values)
    )
    page = open_tab(client, "attention", TEXT)
    show_token(page, 1, 2, 4)
    page.choose("#temperature", str(temperature))
    for hidden, act in (((), "#lines"), ((2,), "#chips button:nth-child(3)"), ((2, 5, 6), "#causal")):
        if act == "#causal":
            page.click(act)
        elif hidden:
            page.evaluate(f"document.querySelector('{act}').focus()")
            page.press("x")
        next_frame(page)
        products = k @ q
        scaled = products / np.sqrt(len(q)) / temperature
        scores = scaled.copy()
        scores[list(hidden)] = -np.inf
        weights = np.exp(scores - scores.max())
        weights /= weights.sum()
        for number, expected in ((2, products), (3, scaled), (4, scores), (5, weights)):
            np.testing.assert_allclose(column(page, number), expected, rtol=0, atol=ATOL)
        assert [row[0] for row in table(page, "#steps")] == [*(attention.tokens or ()), "sum"]
        strips = page.evaluate(
            "[...document.querySelectorAll('#steps .strip')].map("
            "strip => [...strip.querySelectorAll('title')].map(each => each.textContent))"
        )
        parts = np.array([[float(title.rpartition(" ")[2]) for title in strip] for strip in strips])
        np.testing.assert_allclose(parts[:-1], weights[:, np.newaxis] * v, rtol=0, atol=ATOL)
        np.testing.assert_allclose(parts[-1], weights @ v, rtol=0, atol=ATOL)
        assert page.texts("#context-numbers li") == [f"{each:.4f}" for each in parts[-1]]


def test_the_title_of_the_steps_names_what_they_show(open_tab: OpenTab, client: Client) -> None:
    page = open_tab(client, "attention", TEXT)
    show_token(page, 0, 3, 2)
    assert page.texts("#steps-title") == ["Steps of layer 0, head 3 for token 2 “bread”"]
    assert page.texts("#steps thead th")[3:] == ["→ mask", "→ softmax", "→ weight · value"]
