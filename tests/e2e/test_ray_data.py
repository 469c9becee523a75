"""`examples/ray_data.py` encodes every row once, although a worker of Ray and a server are killed meanwhile.

Ray is in an environment of its own, `.venv-ray`, which `make test-all` makes, because nothing else of the project needs
Ray and its packages.
"""

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pytest
from pyarrow import parquet

from headwaiter_client import Client
from testbed.server_process import RunningServer, running_server
from tests.support.documents import ROOT
from tests.support.e2e.prometheus_metrics import metric_value

PYTHON = ROOT / ".venv-ray" / "bin" / "python"
FILES, ROWS = 8, 40_000
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith(("HEADWAITER_", "PYTEST_", "RAY_"))},
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
}


@dataclass(frozen=True)
class Nodes:
    """Two nodes of Ray, the children of a process, and the environment of a program that uses them."""

    process: "subprocess.Popen[str]"
    environment: dict[str, str]

    def workers(self) -> list[psutil.Process]:
        """Return the processes that call the servers."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        return [child for child in children if "MapBatches(Encoder)" in " ".join(child.cmdline())]


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    """Two nodes of Ray, whose processes are children of this process."""
    if not PYTHON.exists():
        pytest.skip("Ray is not installed: run `make .venv-ray/.installed`")
    # The paths of Ray's sockets must be short.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:
        environment = {**ENVIRONMENT, "RAY_TMPDIR": folder}
        command = [str(PYTHON), str(ROOT / "tests" / "support" / "e2e" / "ray_nodes.py")]
        with subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            environment["RAY_ADDRESS"] = process.stdout.readline().strip()
            assert environment["RAY_ADDRESS"]
            yield Nodes(process, environment)
            children = psutil.Process(process.pid).children(recursive=True)
            assert process.stdin is not None
            process.stdin.close()
            process.wait(60)
            psutil.wait_procs(children, 30)


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_every_row_is_encoded_once_although_a_worker_and_a_server_are_killed(
    text_bundle: Path, tmp_path: Path, nodes: Nodes
) -> None:
    words = ("bread", "rain", "stone", "table")
    texts = [" ".join(words[(row >> 2 * place) % 4] for place in range(8)) for row in range(ROWS)]
    (tmp_path / "corpus").mkdir()
    for number in range(FILES):
        rows = range(number, ROWS, FILES)
        table = pa.table({"id": rows, "text": [texts[row] for row in rows], "even": [row % 2 == 0 for row in rows]})
        parquet.write_table(table, tmp_path / "corpus" / f"{number}.parquet")
    with ExitStack() as stack:
        servers = [stack.enter_context(running_server(text_bundle, ["--provider", "cpu"])) for _ in range(2)]
        job = stack.enter_context(_started_job(tmp_path, nodes, servers))
        _wait_for_sequences(job, servers, ROWS // 8)
        nodes.workers()[0].kill()
        _wait_for_sequences(job, servers, ROWS // 3)
        servers[0].process.kill()
        assert job.wait(400) == 0, (tmp_path / "log").read_text()
        with Client(servers[1].address) as client:
            expected = client.encode(texts).pooled
    encoded = parquet.read_table(tmp_path / "out")
    assert sorted(encoded["id"].to_pylist()) == [*range(ROWS)]
    order = np.argsort(encoded["id"].to_numpy())
    assert encoded["text"].take(order).to_pylist() == texts
    assert encoded["even"].take(order).to_pylist() == [row % 2 == 0 for row in range(ROWS)]
    vectors = np.stack(encoded["vector"].to_numpy())[order]
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-5)


@contextmanager
def _started_job(folder: Path, nodes: Nodes, servers: list[RunningServer]) -> "Iterator[subprocess.Popen[bytes]]":
    """Start the example, and kill it at the end."""
    command = [str(PYTHON), str(ROOT / "examples" / "ray_data.py"), str(folder / "corpus"), str(folder / "out")]
    command += ["--column", "text", "--actors", "2", "--addresses", ",".join(server.address for server in servers)]
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(command, env=nodes.environment, stdout=log, stderr=subprocess.STDOUT) as job,
    ):
        try:
            yield job
        finally:
            job.kill()


def _wait_for_sequences(job: "subprocess.Popen[bytes]", servers: list[RunningServer], count: int) -> None:
    """Wait until the servers have encoded this number of sequences together."""
    while sum(metric_value(server.metrics_url, "headwaiter_batch_sequences_sum") for server in servers) < count:
        assert job.poll() is None
        time.sleep(0.05)
