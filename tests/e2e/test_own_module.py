"""A server answers like the module of a caller, whose own code was exported, and ends with exit code 0."""

import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from headwaiter_client import Client
from headwaiter_export import export_module
from headwaiter_export.bundle.graphs import chosen_plans
from testbed.server_process import running_server
from tests.support.export.helpers import assert_close_to_scale
from tests.support.export.own_modules import MAX_TOKENS, PACKED, VOCABULARY, random_module


@pytest.mark.parametrize("name", ["relative_table"])
def test_a_served_module_gives_its_own_rows_and_sigterm_ends_its_server_with_exit_code_0(
    name: str, tmp_path: Path
) -> None:
    make, takes = PACKED[name]
    module = random_module(make)
    plans = chosen_plans(["packed-cpu"], ["fp32"])
    export_module(module, tmp_path / "bundle", max_tokens=MAX_TOKENS, plans=plans, **takes)
    rng = np.random.default_rng(0)
    sequences = [rng.integers(0, VOCABULARY, n) for n in (1, 7, MAX_TOKENS, 2)]
    with torch.inference_mode():
        expected = [module(torch.from_numpy(each)[None])[0].numpy() for each in sequences]
    with running_server(tmp_path / "bundle", ["--provider", "cpu"]) as server, Client(server.address) as client:
        encoding = client.encode_tokens(sequences, hidden=True)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == 0
    assert_close_to_scale(np.concatenate(encoding.hidden), np.concatenate(expected), 1e-6)
    assert_close_to_scale(encoding.pooled, np.stack([rows.mean(0) for rows in expected]), 1e-6)
