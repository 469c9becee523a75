"""Local attention gives no weight outside its window, and takes linear time."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.config.field_checks import ConfigError
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_export.graphs.attention_weights import AttentionWeightsLayout
from headwaiter_export.graphs.packed_cpu import PackedCpu
from headwaiter_export.graphs.packed_cuda import PackedCuda
from headwaiter_server.runtime.attention_routes import Route
from headwaiter_server.runtime.attention_weights import ATTENTION_OUTPUTS
from headwaiter_server.runtime.graph import EncoderGraph
from headwaiter_server.runtime.packing import pack
from tests.support.export.helpers import (
    assert_close,
    assert_mentions,
    oracle_of,
    random_encoder,
    random_sequences,
    write_graphs,
)
from tests.support.export.standard_attention import open_with_standard_attention

WINDOW, LONGEST = 7, 48
LOCAL = {
    "feature_width": 6,
    "positions": "rotary",
    "local_layers": [1],
    "window": WINDOW,
    "rotary_theta": 500.0,
    "local_rotary_theta": 20.0,
}


@pytest.mark.parametrize("mask", ["none", "causal"])
def test_attention_weights_are_zero_outside_the_window(mask: str) -> None:
    encoder = random_encoder(**LOCAL, mask=mask)
    (features,) = random_sequences(encoder.config, (LONGEST,))
    layout = AttentionWeightsLayout({"features": torch.from_numpy(features)})
    with torch.inference_mode():
        encoder(torch.from_numpy(features), layout)
    expected = oracle_of(encoder).attention(features)
    positions = np.arange(LONGEST)
    distances = np.abs(positions - positions[:, None])
    for layer, weights in enumerate(layout.outputs(None, torch.empty(0))[:: len(ATTENTION_OUTPUTS)]):
        assert_close(weights.numpy(), expected[layer][0])
        assert ((weights.numpy()[:, distances > WINDOW] == 0).all()) == (layer == 1)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("runs_graphs")
def test_a_graph_for_cuda_gathers_only_products_of_distances(tmp_path: Path) -> None:
    # Without the sizes of heads, the route of a graph that gathers nothing counts as unfused.
    for distance_keys, route in ((False, Route.UNFUSED), (True, Route.GATHERED)):
        encoder = random_encoder(**LOCAL, distance_keys=distance_keys)
        path = write_graphs(encoder, tmp_path, PackedCuda)[PackedCuda]
        assert EncoderGraph(open_with_standard_attention(path), gpu=0).route == route


@pytest.mark.parametrize("layers", [[2], [-1], ["1"], [True], "1", 1])
def test_local_layers_that_do_not_exist_are_refused_by_name(layers: Any) -> None:
    with pytest.raises(ConfigError) as error:
        random_encoder(**{**LOCAL, "local_layers": layers})
    assert_mentions(error.value, "local_layers", repr(layers))


def test_a_window_without_a_key_is_refused_by_name() -> None:
    with pytest.raises(ConfigError) as error:
        random_encoder(**{**LOCAL, "window": 0}, mask="self_excluding")
    assert_mentions(error.value, "window", "self_excluding")


@pytest.mark.exhaustive
@pytest.mark.usefixtures("runs_graphs")
def test_doubling_a_long_sequence_costs_a_local_layer_at_most_2_3_times(tmp_path: Path) -> None:
    sizes = {"feature_width": 8, "d_model": 384, "heads": 6, "layers": 1, "d_ff": 576, "max_tokens": 8192}
    encoder = Encoder(EncoderConfig(**sizes, local_layers=(0,), window=64, positions="rotary")).eval()  # type: ignore[arg-type]
    graph = EncoderGraph.open(write_graphs(encoder, tmp_path, PackedCpu)[PackedCpu], "cpu", threads=1)
    seconds = []
    for tokens in (4096, 8192):
        batch, times = pack(random_sequences(encoder.config, (tokens,))), []
        for _ in range(4):
            start = time.process_time()
            graph.run(batch, hidden=False)
            times.append(time.process_time() - start)
        seconds.append(min(times))
    assert seconds[1] <= 2.3 * seconds[0]
