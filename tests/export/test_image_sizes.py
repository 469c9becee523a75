"""A server of a Vision Transformer accepts images of the model's own size alone, with a row for the class token."""

from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from headwaiter_client import InvalidInput, SequenceTooLong
from headwaiter_export.cli import main
from headwaiter_proto.encoder_pb2 import POOLING_CLS
from headwaiter_server.runtime.bundle import Bundle
from tests.support.checkpoints import save_vit
from tests.support.e2e.in_process_server import connect, serving
from tests.support.oracle import Array

pytestmark = pytest.mark.usefixtures("starts_processes", "runs_graphs", "runs_transformers", "packed_cpu_alone")


def rows_of(patches: int) -> Array:
    """Return the rows of a random image: zeros for the class token, then the patches."""
    rows = np.random.default_rng(patches).standard_normal((1 + patches, 48), np.float32)
    rows[0] = 0
    return rows


@pytest.mark.exhaustive
async def test_a_vit_bundle_encodes_images_of_its_own_size_and_refuses_all_others(tmp_path: Path) -> None:
    save_vit(tmp_path / "vit", num_hidden_layers=1)
    ViTImageProcessorPil(size=12).save_pretrained(tmp_path / "vit")
    with redirect_stdout(StringIO()) as printed:
        assert main(["checkpoint", str(tmp_path / "vit"), "-o", str(tmp_path / "bundle")]) == 0
    assert "tokenizer" not in printed.getvalue()
    manifest = Bundle.open(tmp_path / "bundle").manifest
    assert (manifest.feature_width, manifest.max_tokens, manifest.pooling) == (48, 10, POOLING_CLS)
    good = [rows_of(9) for _ in range(3)]
    async with serving(tmp_path / "bundle") as server, connect(server) as client:
        assert (await client.encode_features(good)).lengths.tolist() == [10] * 3
        smaller, larger = rows_of(4), rows_of(16)
        for rows, actual, kind in (
            (smaller, 5, InvalidInput),
            (good[1][1:], 9, InvalidInput),  # The row of zeros is missing.
            (larger, 17, SequenceTooLong),
        ):
            with pytest.raises(InvalidInput) as refused:
                await client.encode_features([good[0], rows])
            error = refused.value
            assert type(error) is kind
            assert (error.sequence, error.field, error.limit, error.actual) == (1, "features.lengths", 10, actual)
        with pytest.raises(InvalidInput) as refused:
            await client.encode_features([good[0], np.concatenate([good[1][1:], good[1][:1]])])
        assert (refused.value.sequence, refused.value.field) == (1, "features.data")
        description = await client.model()
        assert (description.min_tokens, description.max_tokens) == (10, 10)
        assert (description.prefix_rows, description.image) == (1, manifest.image)
        assert description.image.preparation.resize_height == 12
