"""The context vector of a decoder with grouped queries in Chromium follows masks: numpy, with transformers' values."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from headwaiter_client import Client
from testbed.server_process import running_server
from tests.e2e.playground.conftest import OpenTab, next_frame, show_token
from tests.support.e2e.classifiers import export_classifier
from tests.support.export.family_checkpoints import save_family

IDS = np.arange(9) * 5
QUERY, HEAD, HEADS_PER_GROUP, HEAD_DIM = 6, 3, 2, 8


@pytest.fixture
def decoder(tmp_path: Path) -> Iterator[tuple[Client, NDArray[np.float64]]]:
    """A client of a random Qwen3 with two groups of two heads, and the values of HEAD in layer 1, [n, HEAD_DIM]."""
    model = save_family(tmp_path / "checkpoint", "Qwen3", num_key_value_heads=2, head_dim=HEAD_DIM)
    rows: list[NDArray[np.float64]] = []
    projection = model.get_submodule("layers.1.self_attn.v_proj")
    projection.register_forward_hook(lambda _, __, output: rows.append(output[0].double().numpy()))
    with torch.inference_mode():
        model(torch.from_numpy(IDS)[None])
    export_classifier(tmp_path / "checkpoint", tmp_path / "bundle")
    group = HEAD // HEADS_PER_GROUP
    with running_server(tmp_path / "bundle", ["--provider", "cpu"]) as server, Client(server.address) as client:
        yield client, rows[0][:, group * HEAD_DIM : (group + 1) * HEAD_DIM]


def test_the_context_vector_of_a_group_follows_masks_and_temperature(
    decoder: tuple[Client, NDArray[np.float64]], open_tab: OpenTab
) -> None:
    client, values = decoder
    weights = client.attend(IDS, layers=[1], heads=[HEAD], query=QUERY).weights[0, 0, QUERY].astype(np.float64)
    assert (weights[QUERY + 1 :] == 0).all()
    page = open_tab(client, "attention", " ".join(map(str, IDS)))
    show_token(page, 1, HEAD, QUERY)
    hidden: set[int] = set()
    for temperature in (0.5, 1.0, 2.0):
        page.choose("#temperature", str(temperature))
        for crossed in (2, QUERY, 2, QUERY):
            hidden ^= {crossed}
            page.evaluate(f"document.querySelectorAll('#chips button')[{crossed}].focus()")
            page.press("x")
            powers = np.where(np.isin(np.arange(len(IDS)), [*hidden]), 0, weights ** (1 / temperature))
            page.wait_for(f"document.querySelectorAll('#chips .crossed-out').length === {len(hidden)}")
            next_frame(page)
            shown = [float(each) for each in page.texts("#context-numbers li")]
            np.testing.assert_allclose(shown, powers / powers.sum() @ values, rtol=0, atol=0.6e-4)
