"""A layer of each kind of model launches few kernels, and a batch copies nothing but its inputs and outputs."""

from pathlib import Path

import pytest

from tests.support.cuda_double import build
from tests.support.cuda_double.launches import MODELS, count

if reason := build.why_unavailable():
    pytest.skip(reason, allow_module_level=True)

# Kernels and matrix products of a layer in fp16 and fp32.
LAUNCHES = {
    "BERT": (9, 13),
    "MiniLM": (9, 13),
    "ModernBERT": (14, 14),
    "Qwen3": (16, 16),
    "T5": (12, 13),
    "ALiBi": (12, 16),
    "DeBERTa": (35, 33),
    "ViT": (9, 13),
    "DINOv3": (15, 15),
}


@pytest.mark.exhaustive
def test_layers_launch_these_numbers_of_kernels_and_batches_wait_four_times(tmp_path: Path) -> None:
    found = count(MODELS, tmp_path)
    layers = {name: (found[f"{name} fp16"].layer, found[f"{name} fp32"].layer) for name in MODELS}
    assert layers == LAUNCHES
    # Once for each output, and twice at the end of a batch.
    assert {each.waits for each in found.values()} == {4}
