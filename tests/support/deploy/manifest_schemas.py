"""Compares manifests with the schemas of their kinds: those of Kubernetes, and those of the operators of the chart."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

# The newest release of Kubernetes whose schemas kubernetes-validate has.
_RELEASE: str = kubernetes_validate.latest_version()
_OPERATORS = Path(__file__).parents[2] / "deploy" / "operators"
# The modules with the types of custom resources, which `npm` installs in _OPERATORS.
_TYPES = {
    "ScaledObject": "@kubernetes-models/keda/keda.sh/v1alpha1/ScaledObject",
    "PrometheusRule": "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/PrometheusRule",
    "ServiceMonitor": "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/ServiceMonitor",
}


def is_custom(manifest: Mapping[str, Any]) -> bool:
    """Return whether a manifest is a resource of an operator."""
    return manifest["kind"] in _TYPES


def problem(manifest: Mapping[str, Any]) -> str:
    """Return what is wrong with a resource of Kubernetes; unknown fields are wrong too. Empty if it is valid."""
    try:
        kubernetes_validate.validate(manifest, _RELEASE, strict=True)
    except kubernetes_validate.ValidationError as error:
        return f"{'.'.join(map(str, error.path))}: {error.message}"
    return ""


def custom_problem(manifests: Sequence[Mapping[str, Any]], folder: Path) -> str:
    """Return what is wrong with resources of operators; unknown fields are wrong too. Empty if all are valid.

    Args:
        manifests: the resources.
        folder: an empty folder.
    """
    modules = _OPERATORS / "node_modules"
    if not (modules / ".package-lock.json").exists():
        pytest.skip("npm has not installed the schemas of operators: install npm, and run make check")
    # The validators accept unknown fields, and the types do not know patterns, so both check.
    lines = [
        f'const resource{index}: import("{_TYPES[each["kind"]]}").I{each["kind"]} = {json.dumps(each)};'
        for index, each in enumerate(manifests)
    ]
    (folder / "resources.mts").write_text("\n".join(lines))
    (folder / "node_modules").symlink_to(modules)
    options = ["--noEmit", "--strict", "--skipLibCheck", "--module", "nodenext"]
    typed = [str(modules / ".bin" / "tsc"), *options, str(folder / "resources.mts")]
    valid = ["node", str(_OPERATORS / "check.mjs")]
    for command in (typed, valid):
        ended = subprocess.run(command, input=json.dumps(manifests), capture_output=True, text=True, check=False)
        if ended.returncode:
            return ended.stdout + ended.stderr
    return ""
