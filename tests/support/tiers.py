"""The tiers of tests: a test belongs to the tier that its fixtures name, and may start only what its fixtures allow.

A plain test starts nothing. Each fixture of this file lets a test start something slow, and thereby moves the test to
the second tier, which `make check` runs. The tests in `tests/smoke` belong to the first tier, whatever they start.

A file whose `pytestmark`, or a folder whose conftest.py, names such a fixture for all tests has no test of the first
tier. A run of the first tier does not import such a file: the imports would take more time than many of its tests.
"""

import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache, reduce, wraps
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

SMOKE = Path(__file__).parents[1] / "smoke"
# The functions that a test may call only with a fixture: the fixture, the function's module and name, and what a call
# starts.
_GUARDED = (
    ("starts_processes", "subprocess", "Popen.__init__", "a process"),
    ("starts_processes", "os", "fork", "a process"),
    ("starts_processes", "socket", "socket.listen", "a server"),
    ("starts_processes", "grpc", "server", "a server"),
    ("starts_processes", "grpc.aio", "server", "a server"),
    ("runs_graphs", "torch.onnx", "export", "the trace of a graph"),
    ("runs_graphs", "onnxruntime", "InferenceSession.__init__", "a session of ONNX Runtime"),
    ("runs_transformers", "transformers", "PreTrainedModel.__init__", "a model of transformers"),
    ("runs_transformers", "transformers", "PreTrainedTokenizerBase.__init__", "a tokenizer of transformers"),
)
_PARAMETERS = type(pytest.param())
_FIXTURES = frozenset(fixture for fixture, *_ in _GUARDED)
_FOR_ALL_TESTS = re.compile(
    r"^(?:pytestmark = pytest\.mark\.usefixtures\(|@pytest\.fixture\(.*autouse=True\)\ndef \w+\().*?\b(?:"
    + "|".join(sorted(_FIXTURES))
    + r")\b",
    re.MULTILINE,
)


class _RunningTest:
    """The test that runs now, and the fixtures of this file that it has."""

    name = ""
    fixtures = _FIXTURES


@pytest.fixture(scope="session")
def starts_processes() -> None:
    """Let a test start processes and servers."""


@pytest.fixture(scope="session")
def runs_graphs() -> Iterator[None]:
    """Let a test trace graphs, write bundles, and open their sessions.

    The fixture caches the operator registry of PyTorch's exporter; reading the registry for each graph takes a fifth of
    the export time. It also keeps pytest from capturing PyTorch's log of traces, whose records PyTorch makes only if
    the log has a handler.
    """
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ONNXRegistry, "from_torchlib", staticmethod(cache(ONNXRegistry.from_torchlib)))
        # pytest adds handlers to each log that does not propagate.
        patched.setattr(logging.getLogger("torch.__trace"), "propagate", True)
        yield


@pytest.fixture(scope="session")
def runs_transformers() -> None:
    """Let a test use models and tokenizers of transformers and sentence-transformers."""


def exhaustive(*cases: Any) -> list[Any]:
    """Return the cases of a parametrized test that only `make test-all` runs.

    A case is the value of one parameter, or a tuple with a value for each parameter, or a `pytest.param`.
    """
    sets = [
        case if isinstance(case, _PARAMETERS) else pytest.param(*(case if isinstance(case, tuple) else (case,)))
        for case in cases
    ]
    return [case._replace(marks=(*case.marks, pytest.mark.exhaustive)) for case in sets]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out a file or a folder of the second tier if only the first tier runs."""
    return True if "not check" in config.option.markexpr and is_second_tier(collection_path) else None


def is_second_tier(path: Path) -> bool:
    """Return whether a file or a folder names a fixture of this file for all its tests."""
    file = path / "conftest.py" if path.is_dir() else path
    if file.suffix != ".py" or not file.exists() or SMOKE in file.parents:
        return False
    return _FOR_ALL_TESTS.search(file.read_text("utf-8")) is not None


def pytest_collection_modifyitems(items: Iterable[pytest.Item]) -> None:
    """Mark the tests of the second tier."""
    for item in items:
        if _fixtures(item) and SMOKE not in item.path.parents:
            item.add_marker("check")


def pytest_collection_finish() -> None:
    """Guard the functions of the packages that the tests have imported."""
    for fixture, module, name, thing in _GUARDED:
        if module.partition(".")[0] in sys.modules:
            *classes, method = name.split(".")
            owner = reduce(getattr, classes, import_module(module))
            setattr(owner, method, _guard(getattr(owner, method), fixture, thing))


def _guard(function: Callable[..., object], fixture: str, thing: str) -> Callable[..., object]:
    """Return a function that fails the running test if the test lacks the fixture."""

    @wraps(function)
    def guarded(*arguments: Any, **options: Any) -> object:
        if fixture not in _RunningTest.fixtures:
            pytest.fail(f"{_RunningTest.name} starts {thing}: let the test request the fixture `{fixture}`")
        return function(*arguments, **options)

    return guarded


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Guard what the test and the fixtures that are made for the test may start."""
    _RunningTest.name, _RunningTest.fixtures = item.nodeid, _fixtures(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown() -> None:
    """Let fixtures, which several tests may have shared, end in their own way."""
    _RunningTest.fixtures = _FIXTURES


def _fixtures(item: pytest.Item) -> frozenset[str]:
    return _FIXTURES.intersection(getattr(item, "fixturenames", ()))
