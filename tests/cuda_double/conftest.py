"""Fixtures for the tests on the double: tiny models of many forms."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.cuda_double import build
from tests.shared_folders import SharedFolders


@pytest.fixture(scope="session")
def _double() -> None:
    """Skip tests if the double cannot be used here."""
    if reason := build.why_unavailable():
        pytest.skip(reason)


@pytest.fixture(scope="session")
def forms(_double: None, operators: None, text_bundle: Path, shared_folders: SharedFolders) -> Mapping[str, Path]:
    """Folders of models by the name of their form; "bert" is the bundle "tiny-text"."""
    from tests.cuda_double.models import FORMS, write_model

    def write(folder: Path) -> None:
        folder.mkdir()
        for name, form in FORMS.items():
            write_model(folder / name, form)

    folder = shared_folders.get("cuda-forms", write)
    return {"bert": text_bundle, **{name: folder / name for name in FORMS}}
