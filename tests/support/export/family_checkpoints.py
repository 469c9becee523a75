"""Tiny random checkpoints of families of text encoders, and their comparison with `transformers`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from headwaiter_export.encoder.attention_layout import SingleSequence
from headwaiter_export.encoder.encoder import Encoder
from tests.support.checkpoints import bert_hidden, randomize
from tests.support.export.helpers import assert_close_to_scale

SIZES = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 24,
}
# DeBERTa v3, with fewer buckets: distances of 9 to 59 share 7 of them.
DEBERTA_V3: dict[str, Any] = {
    "max_position_embeddings": 70,
    "relative_attention": True,
    "position_buckets": 16,
    "max_relative_positions": 60,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "position_biased_input": False,
}
ROPE = {"rope_type": "default", "rope_theta": 77.0}
LINEAR = {"rope_type": "linear", "rope_theta": 77.0, "factor": 4.0}
# Rotary positions that the encoder lacks.
PROPORTIONAL = {"rope_type": "proportional", "rope_theta": 77.0, "factor": 2.0, "partial_rotary_factor": 0.5}


def save_family(
    folder: Path, name: str, kind: str = "Model", config_class: str = "", **settings: Any
) -> transformers.PreTrainedModel:
    """Save a random checkpoint of a family, whose classes in `transformers` begin with this name."""
    torch.manual_seed(0)
    config = getattr(transformers, config_class or f"{name}Config")(
        **{**SIZES, **settings}, attn_implementation="eager"
    )
    model = getattr(transformers, f"{name}{kind}")(config).eval()
    # The angles of rotary positions are stored beside the parameters.
    angles = {name: value.clone() for name, value in model.state_dict().items() if "embed_positions" in name}
    randomize(model)
    model.load_state_dict(angles, strict=False)
    model.save_pretrained(folder)
    return model


def assert_equals_transformers(encoder: Encoder, model: transformers.PreTrainedModel, lengths: Sequence[int]) -> None:
    """Check the hidden rows of random sequences of these lengths."""
    rng = np.random.default_rng(1)
    for tokens in lengths:
        ids = rng.integers(0, encoder.config.vocabulary_size, tokens)
        with torch.inference_mode():
            hidden = encoder(torch.from_numpy(ids), SingleSequence(tokens))[1]
        assert_close_to_scale(hidden.numpy(), bert_hidden(model, ids))
