"""A model of transformers launches as many kernels with its own module as with its family."""

from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertModel

from headwaiter_export.checkpoints.library_model import read_library_model
from headwaiter_export.checkpoints.reader import read_checkpoint
from headwaiter_export.encoder.own_module import ModuleEncoder
from tests.support.cuda_double.environment import double_in, run_on
from tests.support.cuda_double.forms import PRECISIONS
from tests.support.cuda_double.log import Product, between, kernel_names, of
from tests.support.cuda_double.models import write_encoder

pytestmark = pytest.mark.usefixtures("_double")

SIZES = {"vocab_size": 32, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}


def test_bert_launches_the_same_kernels_with_its_own_module_as_with_its_family(tmp_path: Path) -> None:
    torch.manual_seed(0)
    checkpoint = tmp_path / "checkpoint"
    BertModel(BertConfig(**SIZES, num_hidden_layers=2, max_position_embeddings=64)).save_pretrained(checkpoint)
    model = read_library_model(checkpoint, RuntimeError())
    encoders = {
        "family": read_checkpoint(checkpoint).encoder.merge_dense(),
        "own": ModuleEncoder.of(model.module, **model.choices),
    }
    folders = [
        f"{name}={write_encoder(tmp_path / name, encoder, 'fp32', 'fp16')}" for name, encoder in encoders.items()
    ]
    double = double_in(tmp_path)
    run_on(double, "forms", "1", *folders)
    events = double.log.events()
    for precision in PRECISIONS:
        kernels, products = {}, {}
        for name in encoders:
            mark = f"{name} {precision} 0 several"
            batch = between(events, mark, f"{mark} end")
            kernels[name], products[name] = kernel_names(batch), len(of(Product, batch))
        assert kernels["own"] == kernels["family"]
        assert products["own"] == products["family"] > 0
