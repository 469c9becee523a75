"""What every test may ask for: tiny bundles, made once a run by the real export.

Fixtures import for themselves what takes seconds to import: the process that hands out the tests runs none.
"""

import gc
import os
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from headwaiter_export.cli import main
from headwaiter_export.config import EncoderConfig, Positions
from tests.once import Once

if TYPE_CHECKING:
    from headwaiter_export.encoder import Encoder

# No test asserts a timing. Where a change is judged, its verdict must not hang on the draw.
settings.register_profile("headwaiter", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("headwaiter")


# Two workers share the cores, and threads that wait for each other in a spin are many times slower than one: set before
# torch is imported, for the workers and the processes that tests start too.
os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """What makes folders that all processes of a run share."""
    return Once(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="session", autouse=True)
def _cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what servers measure out of the user's cache, and what is there out of the tests."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def text_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentence-transformers folder: a BERT of 64 positions, texts of at most 32 tokens, unit-length means."""
    from tests.checkpoints import save_bert, save_sentence_transformer, save_tokenizer

    folder = tmp_path_factory.mktemp("checkpoint")
    save_bert(folder)
    save_tokenizer(folder)
    save_sentence_transformer(folder)
    return folder


@pytest.fixture(scope="session")
def operators() -> Iterator[None]:
    """Let PyTorch's tracer read the sources of its operators once, and not for each graph: a fifth of its time."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ONNXRegistry, "from_torchlib", staticmethod(cache(ONNXRegistry.from_torchlib)))
        yield


@pytest.fixture(scope="session")
def text_export(text_checkpoint: Path, once: Once, operators: None) -> tuple[Path, str]:
    """The bundle "tiny-text", and what headwaiter-export printed while it made it."""

    def export(folder: Path) -> None:
        with redirect_stdout(StringIO()) as output:
            status = main(["checkpoint", str(text_checkpoint), "-o", str(folder), "--name", "tiny-text"])
        assert status == 0
        folder.with_suffix(".printed").write_text(output.getvalue())

    bundle = once("tiny-text", export)
    return bundle, bundle.with_suffix(".printed").read_text()


@pytest.fixture(scope="session")
def text_bundle(text_export: tuple[Path, str]) -> Path:
    """The bundle "tiny-text": texts of at most 32 tokens, token ids of at most 64, width 32."""
    return text_export[0]


@pytest.fixture(scope="session")
def feature_encoder() -> "Encoder":
    """An encoder of at most 48 feature vectors of width 6, which knows no positions and does not normalise."""
    import torch

    from headwaiter_export.encoder import Encoder
    from tests.checkpoints import randomize

    torch.manual_seed(1)
    encoder = Encoder(
        EncoderConfig(
            feature_width=6,
            d_model=24,
            heads=3,
            layers=2,
            d_ff=48,
            max_tokens=48,
            positions=Positions.NONE,
            embedding_norm=False,
            norm_eps=1e-5,
        )
    )
    randomize(encoder)
    return encoder.eval()


@pytest.fixture(scope="session")
def feature_bundle(feature_encoder: "Encoder", once: Once, operators: None) -> Path:
    """The bundle "tiny-features": feature vectors of width 6, at most 48 of them, width 24."""
    from headwaiter_export.bundle import export_bundle

    return once("tiny-features", lambda folder: export_bundle(feature_encoder, None, folder, "tiny-features"))


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Share all tests between two workers; run those that are named in this process, where a debugger works."""
    return 2 if config.args == config.getini("testpaths") else 0


def pytest_collection_finish() -> None:
    """Keep the garbage collector from looking through torch and transformers again and again."""
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests have recorded."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            terminalreporter.write_line(f"{name}: {value}")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a card where there is none, with the runtime's own reason."""
    if not item.get_closest_marker("gpu"):
        return
    from bench.gpu.cuda import cuda_unavailable_reason

    if reason := cuda_unavailable_reason():
        pytest.skip(reason)
