"""A server of an ONNX file answers like the file, and says what its answers were compared with."""

from pathlib import Path

import numpy as np
import pytest
from onnxruntime.quantization import quantize_dynamic
from tokenizers import Tokenizer

from headwaiter_export.cli import main
from headwaiter_proto.encoder_pb2 import ISOLATION_ONE_SEQUENCE, REFERENCE_SOURCE_ONNX_FILE
from tests.support.checkpoints import save_sentence_transformer
from tests.support.e2e.in_process_server import connect, serving
from tests.support.export.helpers import assert_close_to_scale
from tests.support.export.onnx_files import run_file, save_files

pytestmark = pytest.mark.usefixtures("runs_transformers")


async def test_texts_of_a_file_in_int8_run_one_at_a_time(tmp_path: Path) -> None:
    file, quantized = save_files(tmp_path), tmp_path / "onnx" / "model_qint8.onnx"
    save_sentence_transformer(tmp_path)
    quantize_dynamic(file, quantized)
    assert main(["onnx", str(quantized), "-o", str(tmp_path / "bundle")]) == 0
    texts = ["the bread is fresh", "rain falls on a stone table", "rain"]
    async with serving(tmp_path / "bundle") as server, connect(server) as client:
        description = await client.model()
        encoding = await client.encode(texts, hidden=True, normalize=False)
    tokenizer = Tokenizer.from_file(str(tmp_path / "bundle" / "tokenizer.json"))
    ids = [tokenizer.encode(each).ids for each in texts]
    execution = description.execution
    assert (execution.graph, execution.isolation) == ("padded.int8.onnx", ISOLATION_ONE_SEQUENCE)
    assert execution.reference_source == REFERENCE_SOURCE_ONNX_FILE
    for rows, vector, each in zip(encoding.hidden, encoding.pooled, ids, strict=True):
        expected = run_file(quantized, "last_hidden_state", np.array(each))
        np.testing.assert_array_equal(rows, expected)
        assert_close_to_scale(vector, expected.mean(0), 1e-6)
