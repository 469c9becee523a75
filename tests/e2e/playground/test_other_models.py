"""What the tabs say of several models, and of models for other purposes than vectors of texts."""

import json

import numpy as np
import pytest

from headwaiter_client import FakeEncoder
from headwaiter_proto import encoder_pb2 as pb
from testbed.chromium import Page
from tests.e2e.playground.conftest import OpenTab, next_frame, table
from tests.support.playground.changing_server import ChangingServer

COST = pb.BatchCost(launch_s=0.001, token_s=1e-5, cell_s=1e-8)
# A page's own work of 300 ms with each reply.
BUSY_PAGE = """(json => { Response.prototype.json = async function () {
    const reply = await json.call(this);
    for (const end = performance.now() + 300; performance.now() < end;);
    return reply;
}; })(Response.prototype.json)"""
# Metrics of two models, which grow with each reading.
METRICS = """(answered => { let readings = 0; window.fetch = async (url, options) => {
    if (!url.startsWith('../metrics?name')) return answered(url, options);
    readings += 1;
    const sequences = readings > 2 ? 2 : readings;
    return new Response(['one', 'two'].map((model, index) => `
headwaiter_queue_sequences{model="${model}",version="1"} ${index + 3}
headwaiter_batch_sequences_sum{model="${model}",version="1"} ${sequences * 10 ** index}
headwaiter_batch_sequences_count{model="${model}",version="1"} ${sequences}`).join(''));
}; })(fetch)"""


def choose_model(page: Page, name: str) -> None:
    shown = page.texts("#model-summary")[0]
    page.choose("#model", name)
    page.wait_for(f"document.querySelector('#model-summary').textContent !== {json.dumps(shown)}")


def test_the_network_does_not_hold_the_work_of_the_page(open_tab: OpenTab) -> None:
    page = open_tab(ChangingServer(one=FakeEncoder(model="one")), "latency")
    page.evaluate(BUSY_PAGE)
    page.choose("#latency-requests", "1")
    page.choose("#latency-sequences", "1")
    page.click("#latency-send")
    page.wait_for("document.querySelectorAll('#stages-table tbody tr').length === 1")
    names = page.texts("#stages-table thead th")
    row = dict(zip(names, table(page, "#stages-table")[0], strict=True))
    assert float(row["network"]) < 300 <= float(row["browser"])


def test_the_server_now_is_that_of_the_chosen_model_and_keeps_its_last_values(open_tab: OpenTab) -> None:
    server = ChangingServer(one=FakeEncoder(model="one", layers=1), two=FakeEncoder(model="two"))
    page = open_tab(server, "models")
    choose_model(page, "two")
    page.evaluate(METRICS)
    page.click("#tab-latency")
    page.wait_for("document.querySelectorAll('.tile b').length === 4")
    assert page.texts("#live-title") == ["Server now: two"]
    assert page.texts(".tile b")[:2] == ["4", "10.0"]
    # From then on, no batch runs.
    page.wait_for("document.querySelectorAll('.tile b')[3].textContent === '0.0'")
    assert page.texts(".tile b")[:2] == ["4", "10.0"]
    # The lines share their time axis: that of the size of batches ends where the others go on.
    ends = page.evaluate(
        "[...document.querySelectorAll('.tile path')].map(path => (box => box.x + box.width)(path.getBBox()))"
    )
    assert ends[0] == ends[3] == 100
    assert ends[1] == pytest.approx(100 - 100 / 59)


def test_cosines_of_a_model_that_was_made_for_something_else_come_with_a_word(open_tab: OpenTab) -> None:
    server = ChangingServer(
        plain=FakeEncoder(model="plain", layers=1), ranker=FakeEncoder(model="ranker", labels=["s"])
    )
    page = open_tab(server, "similarity")
    page.wait_for("document.querySelector('.cosines')")
    assert not page.evaluate("document.querySelector('#similarity-caution').checkVisibility()")
    server.descriptions["ranker"].pooling = pb.POOLING_NONE
    choose_model(page, "ranker")
    page.wait_for("document.querySelector('#similarity-caution')?.checkVisibility()")
    caution = page.texts("#similarity-caution")[0]
    assert "ranker is made to" in caution
    assert "rerank" in caution
    assert "hidden rows" in caution


def test_a_model_without_pooling_has_no_numbers_of_pooled_vectors(open_tab: OpenTab) -> None:
    server = ChangingServer(plain=FakeEncoder(model="plain"))
    server.descriptions["plain"].pooling = pb.POOLING_NONE
    server.descriptions["plain"].execution.self_check.hidden_max_abs = 1e-6
    page = open_tab(server, "models")
    page.wait_for("document.querySelector('#model-cards table')")
    names = [row[0] for row in table(page, "#model-cards")]
    assert "hidden rows, largest difference" in names
    assert not [name for name in names if name.startswith("pooled")]


def test_a_model_of_images_takes_pictures(open_tab: OpenTab) -> None:
    server = ChangingServer(vit=FakeEncoder(model="vit", vocabulary_size=0, feature_width=6))
    server.descriptions["vit"].takes_images = True
    server.descriptions["vit"].image.MergeFrom(
        pb.ImageFormat(channels=3, height=4, width=4, patch_size=2, preparation=pb.ImagePreparation())
    )
    page = open_tab(server, "images")
    assert page.texts("[role=tab]:not([hidden])") == ["Images", "Latency", "Cost", "Models"]
    page.click("#tab-latency")
    page.click("#latency-send")
    page.wait_for("document.querySelector('#latency-error').textContent.includes('vit takes pictures')")


def test_a_model_of_one_length_has_its_cost_by_the_number_of_sequences(open_tab: OpenTab) -> None:
    server = ChangingServer(one=FakeEncoder(model="one", max_tokens=17, fixed_length=True))
    server.descriptions["one"].execution.MergeFrom(pb.Execution(cost=COST, token_budget=100, cell_budget=2**62))
    page = open_tab(server, "cost")
    page.wait_for("document.querySelector('#cost-table tr')")
    assert page.texts("#cost-table thead th")[0] == "sequences"
    rows = table(page, "#cost-table")
    assert [row[0] for row in rows] == ["1", "2", "4", "5"]
    seconds = COST.launch_s + COST.token_s * 5 * 17 + COST.cell_s * 5 * 17**2
    assert float(rows[-1][4]) == pytest.approx(1000 * seconds, abs=0.006)
    assert not page.evaluate("document.querySelector('#batch-size').checkVisibility()")


def test_the_cost_is_what_the_last_batches_took(open_tab: OpenTab) -> None:
    server = ChangingServer(one=FakeEncoder(model="one"))
    server.descriptions["one"].execution.cost.CopyFrom(COST)
    predicted_s = COST.launch_s + COST.token_s * 512 + COST.cell_s * 512**2
    server.batches = [
        pb.Batch(model="one", version="1", lengths=[512], requests=[0], measured_s=ratio * predicted_s)
        for ratio in (1.5, 2.0, 9.0)
    ]
    page = open_tab(server, "cost")
    page.wait_for("document.querySelector('#batches figure')")
    next_frame(page)
    assert "Its last 3 batches took 2.00 times as long" in page.texts("#cost-words")[0]
    np.testing.assert_allclose(float(table(page, "#cost-table")[-1][4]), 2000 * predicted_s, rtol=0.01)
