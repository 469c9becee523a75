"""Linear biases (ALiBi) give the hidden rows of a causal stack of `transformers`, and its slopes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor
from transformers.models.bloom.modeling_bloom import build_alibi_tensor

from headwaiter_export.config.choices import Mask
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_export.encoder.positions import alibi_slopes
from headwaiter_export.encoder.score_terms import ScoreTerms
from headwaiter_export.graphs.packed_cpu import PackedCpu
from tests.support.checkpoints import bert_hidden, randomize
from tests.support.export.helpers import assert_close_to_scale, random_sequences, run_graph, write_graphs

MAX_TOKENS = 300
# Names of the modules of a layer in MptModel; it keeps queries, keys and values in one tensor.
MODULES = {
    "attention_norm": "norm_1",
    "attention.output": "attn.out_proj",
    "feed_forward_norm": "norm_2",
    "feed_forward.up": "ffn.up_proj",
    "feed_forward.down": "ffn.down_proj",
}


def test_slopes_are_those_of_bloom() -> None:
    for heads in range(1, 41):
        biases = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)
        np.testing.assert_allclose(alibi_slopes(heads), biases[:, 0, 1], rtol=1e-5)


def random_mpt(heads: int) -> transformers.PreTrainedModel:
    """Build a small causal stack with linear biases, and without any other positions."""
    torch.manual_seed(0)
    sizes = {"d_model": 48, "n_layers": 2, "expansion_ratio": 4, "vocab_size": 50, "max_seq_len": MAX_TOKENS}
    model = transformers.MptModel(transformers.MptConfig(**sizes, n_heads=heads, attn_implementation="eager")).eval()
    randomize(model)
    return model


def encoder_of(model: transformers.PreTrainedModel) -> Encoder:
    """Return the encoder with the weights of an MptModel."""
    tensors: dict[str, Tensor] = model.state_dict()
    weights = {"embedding.tokens.weight": tensors["wte.weight"], "norm.weight": tensors["norm_f.weight"]}
    for i in range(model.config.n_layers):
        weights |= {
            f"layers.{i}.{module}.weight": tensors[f"blocks.{i}.{name}.weight"] for module, name in MODULES.items()
        }
        for part, rows in zip(("query", "key", "value"), tensors[f"blocks.{i}.attn.Wqkv.weight"].chunk(3), strict=True):
            weights[f"layers.{i}.attention.{part}.weight"] = rows
    weights |= {f"{name[:-7]}.bias": torch.zeros(48) for name in list(weights) if "norm.weight" in name}
    biases = ("query_bias", "key_bias", "value_bias", "output_bias", "up_bias", "down_bias")
    choices: dict[str, Any] = {"mask": "causal", "positions": "alibi", "norm": "pre", "norm_eps": 1e-5}
    config = EncoderConfig.from_dict(
        {
            **dict.fromkeys(biases, False),
            **choices,
            "vocabulary_size": 50,
            "d_model": 48,
            "heads": model.config.n_heads,
            "layers": model.config.n_layers,
            "d_ff": 4 * 48,
            "max_tokens": MAX_TOKENS,
            "final_norm": True,
            "embedding_norm": False,
        }
    )
    return Encoder.with_weights(config, weights)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("runs_graphs", "runs_transformers")
@pytest.mark.parametrize("heads", [4, 6])
def test_a_causal_stack_equals_transformers_mpt(heads: int, tmp_path: Path) -> None:
    model = random_mpt(heads)
    encoder = encoder_of(model)
    path = write_graphs(encoder, tmp_path, PackedCpu)[PackedCpu]
    sequences = random_sequences(encoder.config, (1, 2, 40, MAX_TOKENS))
    expected = [bert_hidden(model, ids) for ids in sequences]
    assert_close_to_scale(run_graph(path, "cpu", sequences).hidden, np.concatenate(expected))
    for ids, rows in zip(sequences, expected, strict=True):
        assert_close_to_scale(run_graph(path, "cpu", [ids]).hidden, rows)


def test_the_terms_of_cuda_graphs_have_a_slope_for_each_head() -> None:
    # Graphs for CUDA add one array for all sequences. Tracing one takes seconds, so the terms alone are tested here.
    terms = ScoreTerms(Mask.NONE, slopes=(0.5, 0.25)).by_distance(3, torch.float32)
    np.testing.assert_array_equal(terms.numpy(), [[-1.0, -0.5, 0, -0.5, -1.0], [-0.5, -0.25, 0, -0.25, -0.5]])
