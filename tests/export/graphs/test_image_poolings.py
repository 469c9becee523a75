"""The poolings that know patches from the model's own tokens give the vectors and the logits of the formulas."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headwaiter_export.config.choices import Pooling
from headwaiter_export.config.head import HeadConfig, ScoreFunction
from headwaiter_export.encoder.reference import concatenate, run_in_pytorch
from headwaiter_export.graphs.graph_layout import Packed
from headwaiter_export.graphs.packed_cpu import PackedCpu
from headwaiter_export.graphs.packed_cuda import PackedCuda
from headwaiter_export.graphs.portable import Portable
from tests.support.export.helpers import (
    RUNTIMES,
    assert_equals_formulas,
    random_encoder,
    random_sequences,
    run_graph,
    write_graphs,
)
from tests.support.tiers import exhaustive

pytestmark = pytest.mark.usefixtures("runs_graphs")

# 11 rows, which are rounded up; the first three are the model's own tokens.
IMAGES: dict[str, Any] = {"feature_width": 6, "prefix_rows": 3, "max_tokens": 11, "fixed_length": True, "layers": 1}
LABELS, SOFTMAX = ("no", "yes"), ScoreFunction.SOFTMAX


@pytest.mark.parametrize("layout", [PackedCpu, *exhaustive(PackedCuda, Portable)])
@pytest.mark.parametrize(
    "choices",
    [
        {
            "pooling": Pooling.CONCATENATED,
            "concatenated": (Pooling.PATCH_MEAN, Pooling.LAST, Pooling.PREFIX_MEAN),
            "head": HeadConfig(LABELS, SOFTMAX, poolings=(Pooling.CLS, Pooling.PATCH_MEAN)),
        },
        # The graph in every run has each part of this one.
        *exhaustive(
            {
                "pooling": Pooling.PATCH_MEAN,
                "head": HeadConfig(LABELS, SOFTMAX, poolings=(Pooling.PREFIX_MEAN,), norm=True),
            },
        ),
    ],
    ids=["concatenated", "alone"],
)
def test_poolings_of_images_equal_the_formulas(
    choices: dict[str, Any], layout: type[Packed | Portable], tmp_path: Path
) -> None:
    encoder = random_encoder(**IMAGES, **choices)
    path = write_graphs(encoder, tmp_path, layout)[layout]
    images = [random_sequences(encoder.config, [11] * count) for count in (1, 3)]
    assert_equals_formulas(encoder, lambda batch: concatenate(run_in_pytorch(encoder, batch)), images)
    assert_equals_formulas(encoder, partial(run_graph, path, RUNTIMES[layout]), images)
