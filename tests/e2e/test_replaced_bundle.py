"""A bundle that is replaced on disk is never served under the digest and the tokenizer of the old bundle."""

import asyncio
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import patch

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray

from headwaiter_client import Client, Encoding, Unavailable
from headwaiter_proto.rules.pooling import normalize_pooled
from headwaiter_server.models import loading
from headwaiter_server.models.loading import load_model
from headwaiter_server.runtime.bundle import GOLDEN, TOKENIZER, Bundle
from headwaiter_server.runtime.errors import BundleRefused
from headwaiter_server.runtime.graph import EncoderGraph
from headwaiter_server.runtime.model import open_model
from headwaiter_server.runtime.packing import pack
from headwaiter_server.scheduling.worker import Worker
from testbed.server_process import running_server
from tests.support.e2e.grpc_errors import code_of
from tests.support.e2e.in_process_server import connect, local_settings, serving
from tests.support.server.bundles import copy, sign

TIMEOUT_S = 30.0
WEIGHTS = "weights.fp32.bin"


@pytest.fixture
def served(text_bundle: Path, tmp_path: Path) -> Path:
    """A copy of the bundle, which a test may replace."""
    return copy(text_bundle, tmp_path)


async def test_attention_weights_are_not_computed_by_another_bundle(served: Path, tmp_path: Path) -> None:
    async with serving(served) as server, connect(server) as client:
        replace_bundle(served, tmp_path / "other")
        with pytest.raises(Unavailable) as refused:
            await client.attend([1, 2, 3])
        assert code_of(refused.value) is grpc.StatusCode.UNAVAILABLE


async def test_a_bundle_that_is_replaced_while_it_is_loaded_is_refused(served: Path) -> None:
    loop = asyncio.get_running_loop()

    def replace_tokenizer(*arguments: Any, **options: Any) -> Any:
        model = open_model(*arguments, **options)
        other = served / "other.json"
        other.write_bytes((served / TOKENIZER).read_bytes().replace(b"bread", b"stone"))
        other.replace(served / TOKENIZER)
        return model

    with patch.object(loading, "open_model", replace_tokenizer), pytest.raises(BundleRefused, match=TOKENIZER):
        await asyncio.to_thread(load_model, served, local_settings(served), [Worker()], loop)


def test_writing_over_the_files_of_a_served_bundle_changes_no_answer(served: Path) -> None:
    sequences = [[1, 2, 3], [4] * 20, list(range(30))]
    with running_server(served, ["--provider", "cpu"]) as server, Client(server.address) as client:
        before = client.encode_tokens(sequences, hidden=True)
        for other_weights in (True, False):
            for path in served.glob("weights.*"):
                # As `cp` does: the same file, shorter first, then with other content.
                with path.open("r+b") as file:
                    content = file.read()
                    file.truncate(0)
                    file.seek(0)
                    file.write(bytes(len(content)) if other_weights else b"")
            after = client.encode_tokens(sequences, hidden=True)
            for old, new in zip(values_of(before), values_of(after), strict=True):
                assert np.array_equal(old, new)
            assert server.process.poll() is None


def values_of(encoding: Encoding) -> list[NDArray[Any]]:
    return [encoding.pooled, *encoding.hidden]


def replace_bundle(served: Path, other: Path) -> None:
    """Replace the files of a bundle by those of a valid bundle with other weights, one by one, as rsync does."""
    shutil.copytree(served, other)
    weights = np.fromfile(other / WEIGHTS, np.uint8)
    as_floats = weights[: len(weights) // 4 * 4].view(np.float32)
    as_floats *= np.where(np.isfinite(as_floats), np.float32(1.1), np.float32(1.0))
    weights.tofile(other / WEIGHTS)
    golden = Bundle.open(served).golden()
    outputs = EncoderGraph.open(other / "packed-cpu.fp32.onnx", "cpu", 1).run(pack(golden.sequences), hidden=True)
    with np.load(other / GOLDEN) as stored:
        arrays = dict(stored)
    assert outputs.pooled is not None
    arrays["pooled"] = normalize_pooled(outputs.pooled, normalized=True)
    arrays["hidden"] = outputs.hidden
    np.savez(other / GOLDEN, **arrays)
    sign(other, [WEIGHTS, GOLDEN])
    for file in other.iterdir():
        file.replace(served / file.name)
