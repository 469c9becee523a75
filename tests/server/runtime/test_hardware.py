"""Without a driver nothing is known of a GPU; the kernel tells the processor's instructions.

What a driver tells is in tests/cuda_double.
"""

import ctypes
from pathlib import Path
from types import SimpleNamespace

import pytest

from headwaiter_server.runtime.hardware import compute_capability, gpu_memory, processor_flags

_NO_DEVICE = 100


def test_without_a_driver_or_a_gpu_the_compute_capability_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(cuInit=lambda flags: _NO_DEVICE))
    assert (compute_capability(0), gpu_memory(0)) == (None, None)
    monkeypatch.setattr(ctypes, "CDLL", load)
    assert (compute_capability(0), gpu_memory(0)) == (None, None)


def test_the_instructions_of_a_processor_are_words_of_its_first_line_of_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "processor\t: 0\nflags\t\t: fpu avx512_vnni amx_bf16\nvmx flags\t: ept\nprocessor\t: 1\nflags\t\t: fpu\n"
    monkeypatch.setattr(Path, "read_text", lambda path, encoding: {"/proc/cpuinfo": lines}[str(path)])
    assert processor_flags() >= {"fpu", "avx512_vnni", "amx_bf16"}
    assert "ept" not in processor_flags()


def test_without_proc_no_instructions_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: Path, encoding: str) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", missing)
    assert processor_flags() == frozenset()
