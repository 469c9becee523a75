"""Mixtures of experts give the formula of SwitchHead, isolate sequences, and break ties by the order of experts."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from headwaiter_export.encoder.encoder import Encoder
from headwaiter_export.encoder.experts import Router
from headwaiter_export.encoder.reference import Reference, clear_sequences, random_sequences, run_in_pytorch
from headwaiter_export.graphs.graph_layout import Packed
from headwaiter_export.graphs.int8 import measure_encoder, quantize
from headwaiter_export.graphs.packed_cpu import PackedCpu
from headwaiter_export.graphs.portable import Portable
from tests.support.export.helpers import (
    RUNTIMES,
    assert_close_to_scale,
    assert_others_change_no_bit,
    oracle_of,
    random_encoder,
    run_graph,
    write_graphs,
)

HEADS, EXPERTS, ACTIVE, WIDTH, VALUES = 3, 4, 2, 24, 8
CHOICES: dict[str, Any] = {"feature_width": 6, "layers": 1, "experts": EXPERTS, "active_experts": ACTIVE}
VALUE, OUTPUT = "layers.0.attention.value", "layers.0.attention.output"
# The attention block alone.
BARE: dict[str, Any] = {
    **CHOICES,
    **dict.fromkeys(("feature_projection", "query_bias", "key_bias", "embedding_norm", "residual"), False),
    "feature_width": WIDTH,
    "positions": "none",
    "d_ff": 0,
    "norm": "none",
}


def switch_head(x: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
    """Return SwitchHead(x) [n, d] token by token, with the tensors of the authors' module.

    sel_v and sel_o [H·E, d]; v [H·E, d, p]; o [H·E, p, d]; q and k [H·p, d].
    """

    def choose(row: Tensor, head: int, selection: Tensor) -> list[tuple[int, Tensor]]:
        scores = torch.sigmoid(selection @ row).view(HEADS, EXPERTS)[head]
        gates, experts = scores.topk(ACTIVE)
        return [(head * EXPERTS + int(expert), gate) for expert, gate in zip(experts, gates, strict=True)]

    y = torch.zeros_like(x)
    q, k = (
        (x @ tensors[name].T).view(len(x), HEADS, -1).transpose(0, 1) / tensors[name].shape[0] ** 0.25 * HEADS**0.25
        for name in ("q", "k")
    )
    for head in range(HEADS):
        values = torch.stack(
            [sum(gate * (row @ tensors["v"][e]) for e, gate in choose(row, head, tensors["sel_v"])) for row in x]
        )
        for i, context in enumerate((q[head] @ k[head].T).softmax(-1) @ values):
            y[i] += sum(gate * (context @ tensors["o"][e]) for e, gate in choose(x[i], head, tensors["sel_o"]))
    return y


def test_the_tensors_of_the_authors_module_give_its_result() -> None:
    torch.manual_seed(0)
    experts, inner = HEADS * EXPERTS, HEADS * VALUES
    shapes = {
        "q": (inner, WIDTH),
        "k": (inner, WIDTH),
        "v": (experts, WIDTH, VALUES),
        "o": (experts, VALUES, WIDTH),
        "sel_v": (experts, WIDTH),
        "sel_o": (experts, WIDTH),
    }
    tensors = {name: torch.randn(shape) / 4 for name, shape in shapes.items()}
    config = random_encoder(**BARE).config
    encoder = Encoder.with_weights(
        config,
        {
            "layers.0.attention.query.weight": tensors["q"],
            "layers.0.attention.key.weight": tensors["k"],
            f"{VALUE}.experts.weight": tensors["v"].transpose(1, 2).reshape(-1, WIDTH),
            f"{VALUE}.router.weight": tensors["sel_v"],
            f"{OUTPUT}.experts.weight": tensors["o"].reshape(-1, WIDTH).T,
            f"{OUTPUT}.router.weight": tensors["sel_o"],
        },
    )
    for sequence in clear_sequences(encoder, (1, 2, 30)):
        (outputs,) = run_in_pytorch(encoder, [sequence])
        assert_close_to_scale(outputs.hidden, switch_head(torch.from_numpy(sequence), tensors).numpy())


@pytest.mark.exhaustive
@pytest.mark.usefixtures("runs_graphs")
@pytest.mark.parametrize("layout", RUNTIMES)
def test_of_equal_scores_those_of_the_first_experts_are_chosen(
    layout: type[Packed] | type[Portable], tmp_path: Path
) -> None:
    encoder = random_encoder(**CHOICES)
    weights = dict(encoder.state_dict())
    for name in (VALUE, OUTPUT):
        weights[f"{name}.router.weight"].zero_()
    # Then all gates are sigmoid(0) = 1/2, and one projection does the same as the first two experts.
    dense = random_encoder(**{**CHOICES, "experts": 0, "active_experts": 0}, value_bias=False, output_bias=False)
    values = weights.pop(f"{VALUE}.experts.weight").view(HEADS, EXPERTS, VALUES, WIDTH)
    outputs = weights.pop(f"{OUTPUT}.experts.weight").view(WIDTH, HEADS, EXPERTS, VALUES)
    expected = Encoder.with_weights(
        dense.config,
        {
            **{name: tensor for name, tensor in weights.items() if "router" not in name},
            f"{VALUE}.weight": values[:, :ACTIVE].sum(1).flatten(0, 1) / 2,
            f"{OUTPUT}.weight": outputs[:, :, :ACTIVE].sum(2).flatten(1) / 2,
        },
    )
    path = write_graphs(encoder, tmp_path, layout)[layout]
    sequences = random_sequences(encoder.config, (5, 48, 1))
    rows = np.concatenate(
        [outputs.hidden for outputs in run_in_pytorch(expected, sequences) if outputs.hidden is not None]
    )
    assert_close_to_scale(run_graph(path, RUNTIMES[layout], sequences).hidden, rows)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("runs_graphs")
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_the_content_of_other_sequences_changes_no_bit(precision: str, tmp_path: Path) -> None:
    encoder = random_encoder(**CHOICES)
    sequences = random_sequences(encoder.config, (5, 31, 1, 12))
    if precision == "int8":
        encoder, _ = quantize(encoder, Reference.compute(encoder), sequences)
    path = write_graphs(encoder, tmp_path, PackedCpu)[PackedCpu]
    for content in (1e4, 3e38, np.inf, np.nan):
        assert_others_change_no_bit(partial(run_graph, path, "cpu"), sequences, content)


def test_the_export_checks_sequences_whose_choices_are_clear() -> None:
    encoder = random_encoder(**{**CHOICES, "layers": 4}, max_tokens=300)
    formula = oracle_of(encoder)

    def smallest_gaps(sequences: list[Any]) -> list[float]:
        gaps = []
        for sequence in sequences:
            formula.hidden(sequence)
            gaps.append(formula.smallest_gap)
        return gaps

    sequences = Reference.compute(encoder).sequences
    first_draws = random_sequences(encoder.config, map(len, sequences))
    assert min(smallest_gaps(first_draws)) < 1e-5 <= 1.1 * min(smallest_gaps(sequences))


@pytest.mark.exhaustive
def test_in_int8_the_routers_stay_in_float32() -> None:
    encoder = random_encoder(**CHOICES)
    reference = Reference.compute(encoder)
    quantized, _ = quantize(encoder, reference, reference.sequences)
    assert sum(type(each) is Router for each in quantized.modules()) == 2
    assert measure_encoder(quantized, reference).min_cosine >= 0.99
