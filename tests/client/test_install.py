"""The client is light: what other services install along with it stays small."""

import subprocess
import sys

_HEAVY = (
    "torch",
    "onnxruntime",
    "onnx",
    "tokenizers",
    "transformers",
    "rich",
    "matplotlib",
    "pyarrow",
    "headwaiter_server",
)


def test_importing_the_client_and_its_command_loads_nothing_but_its_own_dependencies() -> None:
    program = f"import headwaiter_client.cli, sys; print(*(name for name in {_HEAVY} if name in sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert loaded.split() == []
