"""Fixtures and hooks for all tests. The tiny bundles come from the real export, once per test run.

Fixtures import slow packages inside their functions: the controller of pytest-xdist loads this file but runs no tests.
"""

import gc
import os
import signal
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from headwaiter_export.cli import main
from testbed.server_process import FRONT_ENDS, RunningServer, running_server
from tests.support.shared_folders import SharedFolders

pytest_plugins = ["tests.support.tiers"]

if TYPE_CHECKING:
    from headwaiter_export.encoder.encoder import Encoder

# No test asserts a timing, so no example has a deadline. In CI the examples are the same in every run.
settings.register_profile("headwaiter", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("headwaiter")


# The test processes share the cores; OpenMP threads that spin while they wait would slow the tests down many times.
# This line must run before torch is imported. Processes that tests start inherit the variable.
os.environ["OMP_NUM_THREADS"] = "1"

# A shell script that starts the tests in the background makes them ignore these signals, and each process that a test
# starts would ignore the signals too.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)


@pytest.fixture(scope="session")
def shared_folders(tmp_path_factory: pytest.TempPathFactory) -> SharedFolders:
    """Folders that all processes of a test run share."""
    return SharedFolders(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="module", autouse=True)
def _frozen_objects() -> Iterator[None]:
    """Exclude the objects that remain after a module's tests, such as imported modules, from garbage collection.

    Each trace of a graph makes so many objects that Python looks at all others a few times.
    """
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def text_checkpoint(tmp_path_factory: pytest.TempPathFactory, runs_transformers: None) -> Path:
    """A sentence-transformers folder: a BERT of 64 positions; texts of at most 32 tokens; unit-length means."""
    from tests.support.checkpoints import save_bert, save_sentence_transformer, save_tokenizer

    folder = tmp_path_factory.mktemp("checkpoint")
    save_bert(folder)
    save_tokenizer(folder)
    save_sentence_transformer(folder)
    return folder


@pytest.fixture(scope="session")
def text_export(text_checkpoint: Path, shared_folders: SharedFolders, runs_graphs: None) -> tuple[Path, str]:
    """The bundle "tiny-text", and the output of the headwaiter-export command that made the bundle."""

    def export(folder: Path) -> None:
        gc.freeze()  # The modules that were imported since the last time.
        with redirect_stdout(StringIO()) as output:
            status = main(["checkpoint", str(text_checkpoint), "-o", str(folder), "--name", "tiny-text"])
        assert status == 0
        folder.with_suffix(".printed").write_text(output.getvalue())

    bundle = shared_folders.get("tiny-text", export)
    return bundle, bundle.with_suffix(".printed").read_text()


@pytest.fixture(scope="session")
def text_bundle(text_export: tuple[Path, str]) -> Path:
    """The bundle "tiny-text": texts of at most 32 tokens, sequences of at most 64 token ids, vectors of width 32."""
    return text_export[0]


@pytest.fixture(scope="session")
def feature_encoder() -> "Encoder":
    """An encoder for sequences of at most 48 feature vectors of width 6, without positions and embedding norm."""
    from tests.support.checkpoints import feature_encoder

    return feature_encoder()


@pytest.fixture(scope="session")
def feature_bundle(feature_encoder: "Encoder", shared_folders: SharedFolders, runs_graphs: None) -> Path:
    """The bundle "tiny-features": sequences of at most 48 feature vectors of width 6; vectors of width 24."""
    from headwaiter_export.bundle.export import export_bundle

    def export(folder: Path) -> None:
        gc.freeze()
        export_bundle(feature_encoder, None, folder, "tiny-features")

    return shared_folders.get("tiny-features", export)


@pytest.fixture(scope="session")
def text_server(text_bundle: Path, starts_processes: None) -> Iterator[RunningServer]:
    """A server of "tiny-text" that accepts at most 8 sequences, 96 tokens and 8 KiB per request."""
    limits = ["--max-request-sequences", "8", "--max-request-tokens", "96", "--max-request-bytes", "8192"]
    with running_server(text_bundle, ["--provider", "cpu", *limits]) as server:
        yield server


@pytest.fixture(scope="session")
def feature_server(feature_bundle: Path, starts_processes: None) -> Iterator[RunningServer]:
    """A server of "tiny-features"."""
    with running_server(feature_bundle, ["--provider", "cpu"]) as server:
        yield server


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that chooses the form of the servers."""
    parser.addoption("--front-ends", type=int, default=0, help="number of front ends of the tested servers (default 0)")


def pytest_configure(config: pytest.Config) -> None:
    """Tell the form to the code that starts servers, in the processes of pytest-xdist and in scripts, too."""
    os.environ[FRONT_ENDS] = str(config.getoption("--front-ends"))


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Run the whole suite in three processes, and named tests in this process, so that a debugger works.

    Three processes keep two cores busy: tests that start servers often wait.
    """
    return 3 if config.args == config.getini("testpaths") else 0


def pytest_collection_finish() -> None:
    """Exclude all objects that exist by now, such as the modules of torch, from garbage collection."""
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the properties that passed tests recorded with `record_property`."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            terminalreporter.write_line(f"{name}: {value}")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test marked `gpu` if CUDA does not work here."""
    if not item.get_closest_marker("gpu"):
        return
    from bench.gpu.cuda import cuda_unavailable_reason

    if reason := cuda_unavailable_reason():
        pytest.skip(reason)
