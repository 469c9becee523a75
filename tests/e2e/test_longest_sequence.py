"""A server with a model of 8,192 tokens computes one longest sequence in bounded memory."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from bench.processes import memory_mib
from headwaiter_client import Client
from headwaiter_export.bundle.export import export_bundle
from headwaiter_export.bundle.graphs import GRAPHS
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_export.graphs.packed_cpu import PackedCpu
from headwaiter_proto.encoder_pb2 import PRECISION_FP32
from testbed.server_process import running_server

TOKENS = 8192
# Export and sequence take minutes on a slow machine.
TIMEOUT_S = 1800
# The server must not refuse the sequence: on a busy machine it predicts a time that is many times too long.
DEADLINE_S = 86_400.0
MOST_MIB = 2048


@pytest.mark.exhaustive
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of the server from /proc")
def test_one_longest_sequence_of_8192_tokens_takes_at_most_2_gib(tmp_path: Path) -> None:
    # The shape of XLM-R-base, with a small vocabulary, because the embedding table has no part in attention, and with
    # 3 of its 12 layers, because they use the same memory in turn.
    torch.manual_seed(0)
    config = EncoderConfig(vocabulary_size=1000, d_model=768, heads=12, layers=3, d_ff=3072, max_tokens=TOKENS)
    plans = [plan for plan in GRAPHS if plan.layout is PackedCpu and plan.precision == PRECISION_FP32]
    export_bundle(Encoder(config).eval(), None, tmp_path / "bundle", "long", plans=plans)
    with running_server(tmp_path / "bundle", ["--provider", "cpu"]) as server, Client(server.address) as client:
        predicted = client.model().execution.longest_sequence_bytes / 2**20
        idle = memory_mib("VmRSS", server.process.pid)
        ids = np.random.default_rng(0).integers(0, config.vocabulary_size, TOKENS)
        vectors = client.encode_tokens([ids], timeout_s=DEADLINE_S).pooled
        peak, after = (memory_mib(field, server.process.pid) for field in ("VmHWM", "VmRSS"))
    print(f"MiB: idle {idle:.0f}, peak {peak:.0f} (+{peak - idle:.0f}, predicted {predicted:.0f}), after {after:.0f}")
    assert np.isfinite(vectors).all()
    assert peak - idle <= MOST_MIB
    # An idle server may hold memory of the batches that it timed at its start, which the sequence then uses.
    assert 0.5 * predicted <= peak - idle <= 1.3 * predicted
    assert after - idle <= (peak - idle) / 4
