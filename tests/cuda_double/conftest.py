"""Fixtures for the tests on the double: tiny models of many forms."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from tests.support.cuda_double import build
from tests.support.shared_folders import SharedFolders


@pytest.fixture(scope="session", autouse=True)
def _any_start(starts_processes: None, runs_graphs: None, runs_transformers: None) -> None:
    """Let each test of this folder start processes and sessions, and use transformers."""


@pytest.fixture(scope="session")
def _double() -> None:
    """Skip tests if the double cannot be used here."""
    if reason := build.why_unavailable():
        pytest.skip(reason)


@pytest.fixture(scope="session")
def forms(_double: None, runs_graphs: None, text_bundle: Path, shared_folders: SharedFolders) -> Mapping[str, Path]:
    """Folders of the models of every run by the name of their form; "bert" is the bundle "tiny-text"."""
    from tests.support.cuda_double.models import FORMS, write_models

    folder = shared_folders.get("cuda-forms", partial(write_models, FORMS))
    return {"bert": text_bundle, **{name: folder / name for name in FORMS}}


@pytest.fixture(scope="session")
def other_forms(_double: None, runs_graphs: None, shared_folders: SharedFolders) -> Mapping[str, Path]:
    """Folders of the models of exhaustive tests."""
    from tests.support.cuda_double.models import OTHER_FORMS, write_models

    folder = shared_folders.get("cuda-other-forms", partial(write_models, OTHER_FORMS))
    return {name: folder / name for name in OTHER_FORMS}
