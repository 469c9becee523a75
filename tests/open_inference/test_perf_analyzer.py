"""Triton's perf_analyzer, as the wheel of tritonclient brings it, measures a server to the end."""

import asyncio
import json
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.e2e.in_process_server import serving
from tests.support.open_inference.separate_environment import run_or_skip, run_program

pytestmark = pytest.mark.usefixtures("starts_processes")

# The last measurements may not become stable on a busy machine; the report must be complete anyway.
_FLAGS = ("--measurement-interval", "1000", "--stability-percentage", "500", "--concurrency-range", "1:3:2")


def downloaded(folder: Path) -> tuple[Path, str]:
    """Return perf_analyzer, and the folders of its libraries; skip the test if it cannot run here."""
    for package in ("tritonclient==2.50.0", "nvidia-cuda-runtime-cu12"):
        run_or_skip([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", str(folder), package])
    for wheel in folder.glob("*.whl"):
        zipfile.ZipFile(wheel).extractall(folder)
    run_or_skip(["apt-get", "download", "libb64-0d"], folder)
    (package_file,) = folder.glob("libb64*.deb")
    run_or_skip(["dpkg-deb", "-x", str(package_file), str(folder)])
    (program,) = folder.rglob("perf_analyzer")
    program.chmod(0o755)
    libraries = {file.parent for name in ("libcudart.so*", "libb64.so*") for file in folder.rglob(name)}
    return program, ":".join(map(str, libraries))


@pytest.mark.exhaustive
async def test_perf_analyzer_prints_its_report(tmp_path: Path, text_bundle: Path) -> None:
    program, libraries = await asyncio.to_thread(downloaded, tmp_path)
    data = tmp_path / "ids.json"
    data.write_text(json.dumps({"data": [{"input_ids": {"content": list(range(16)), "shape": [16]}}]}))
    async with serving(text_bundle, http_api="on") as server:
        over_grpc = ["-u", f"127.0.0.1:{server.port}", "-i", "grpc"]
        over_http = ["-u", f"127.0.0.1:{server.http_port}", "-i", "http"]
        for mode in (
            over_grpc,
            [*over_grpc, "--async", "--streaming"],
            [*over_grpc, "-b", "8"],
            over_http,
            [*over_http, "-b", "8", "--input-tensor-format", "json", "--output-tensor-format", "json"],
        ):
            arguments = ["-m", "tiny-text", "--input-data", data, *_FLAGS, *mode]
            code, report = await run_program(program, *arguments, LD_LIBRARY_PATH=libraries)
            assert code == 0, report
            assert "Concurrency: 3, throughput:" in report
            assert "Successful request count:" in report
            assert "compute infer" in report
