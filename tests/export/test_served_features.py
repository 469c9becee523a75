"""A server of a model that pools by attention answers with the vectors that `transformers` gives."""

from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch

from headwaiter_client import InvalidInput
from headwaiter_export.cli import main
from tests.support.e2e.in_process_server import connect, serving
from tests.support.export.feature_checkpoints import (
    draw_input,
    input_rows,
    save_feature_model,
)
from tests.support.export.helpers import assert_close_to_scale

pytestmark = pytest.mark.usefixtures("starts_processes", "runs_graphs", "runs_transformers", "packed_cpu_alone")


async def test_a_served_siglip_pools_by_attention(tmp_path: Path) -> None:
    model = save_feature_model(tmp_path / "checkpoint", "SiglipVision")
    with redirect_stdout(StringIO()):
        assert main(["checkpoint", str(tmp_path / "checkpoint"), "-o", str(tmp_path / "bundle")]) == 0
    values = [draw_input(model, seed) for seed in range(3)]
    async with serving(tmp_path / "bundle") as server, connect(server) as client:
        description = await client.model()
        rows = [input_rows(model, each, 0) for each in values]
        encoding = await client.encode_features(rows, pooling="attention")
        with pytest.raises(InvalidInput, match="ATTENTION"):
            await client.encode_features(rows, pooling="mean")
    assert (description.pooling, description.poolings) == ("attention", ("attention",))
    assert encoding.pooled is not None
    with torch.inference_mode():
        expected = model(torch.from_numpy(np.stack(values))).pooler_output
    assert_close_to_scale(encoding.pooled, expected.numpy())
