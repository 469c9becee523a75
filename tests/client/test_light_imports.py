"""The client imports no large package."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.usefixtures("starts_processes")

_HEAVY = (
    "torch",
    "onnxruntime",
    "onnx",
    "tokenizers",
    "transformers",
    "rich",
    "matplotlib",
    "pyarrow",
    "prometheus_client",
    "opentelemetry",
    "headwaiter_server",
)


def test_importing_the_client_and_its_command_loads_no_large_package() -> None:
    program = f"import headwaiter_client.cli, sys; print(*(name for name in {_HEAVY} if name in sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert loaded.split() == []
