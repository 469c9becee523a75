"""Compile the double of CUDA's libraries, and run processes on it."""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from filelock import FileLock

_SOURCES = Path(__file__).parent / "libraries"
_CACHE = Path(__file__).parents[3] / ".cache/cuda_double"
_COMPILER = ("gcc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-shared", "-fPIC")
CORE = "libcuda_double.so"
# The sources of each library that the CUDA provider loads.
LIBRARIES = {
    "libcudart.so.13": "cudart.c",
    "libcuda.so.1": "cuda_driver.c",
    "libcublas.so.13": "cublas.c",
    "libcublasLt.so.13": "cublaslt.c",
    "libcudnn.so.9": "cudnn.c",
    "libcurand.so.10": "curand.c",
}
_CORE_SOURCES = ("controls.c", "log.c", "devices.c", "memory.c", "streams.c")


@cache
def provider_library() -> Path | None:
    """Return the library of ONNX Runtime's CUDA provider; None if the installed package has none."""
    package = importlib.util.find_spec("onnxruntime")
    if package is None or package.origin is None:
        return None
    library = Path(package.origin).parent / "capi/libonnxruntime_providers_cuda.so"
    return library if library.exists() else None


@cache
def why_unavailable() -> str | None:
    """Return why the double cannot be used here; None if it can."""
    if shutil.which(_COMPILER[0]) is None:
        return "the double of CUDA needs gcc"
    if provider_library() is None:
        return "the installed ONNX Runtime has no CUDA provider: install onnxruntime-gpu"
    return None


@cache
def build() -> Path:
    """Return the folder with the libraries; compile them first if no process has compiled these sources."""
    digest = hashlib.sha256(" ".join(_COMPILER).encode())
    for source in sorted(_SOURCES.iterdir()):
        digest.update(f"{source.name}\0{source.read_text()}\0".encode())
    folder = _CACHE / digest.hexdigest()[:16]
    if folder.exists():
        return folder
    _CACHE.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            # Renamed when complete, so that a folder of this name never lacks a library.
            incomplete = Path(tempfile.mkdtemp(dir=_CACHE))
            compile_into(incomplete)
            incomplete.rename(folder)
    return folder


def compile_into(folder: Path) -> None:
    """Compile the libraries into a folder.

    Raises:
        RuntimeError: gcc does not compile a source; the message is that of gcc.
    """
    _compile(folder / CORE, *_CORE_SOURCES, "-lpthread")
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        list(threads.map(lambda library: _compile_library(folder, *library), LIBRARIES.items()))


def _compile_library(folder: Path, name: str, source: str) -> None:
    flags = [str(folder / CORE), "-Wl,-rpath,$ORIGIN", "-ldl", "-Wl,--no-undefined"]
    version_script = _SOURCES / Path(source).with_suffix(".map")
    if version_script.exists():
        flags.append(f"-Wl,--version-script={version_script}")
    _compile(folder / name, source, *flags)


def _compile(library: Path, *sources_and_flags: str) -> None:
    command = [*_COMPILER, f"-Wl,-soname,{library.name}", "-o", str(library), *sources_and_flags]
    finished = subprocess.run(command, cwd=_SOURCES, capture_output=True, text=True, check=False)
    if finished.returncode:
        raise RuntimeError(f"gcc cannot compile {library.name}: {finished.stderr}")
