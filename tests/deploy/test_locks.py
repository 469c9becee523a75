"""The lock files have every requirement of pyproject.toml in a version that it allows, with hashes, from any index."""

import re
import tomllib
from collections.abc import Iterator, Sequence
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCKS = {
    "build": ["build"],
    "dev": ["dev"],
    "export": ["export", "cli"],
    "ray": ["parquet"],
    "server-cpu": ["server", "cli", "otel"],
    "server-cuda": ["server", "cli", "otel", "cuda"],
}
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
LINUX = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "extra": ""}
MACHINES = [
    {**LINUX, "platform_machine": machine, "python_version": version, "python_full_version": f"{version}.9"}
    for machine in ("x86_64", "aarch64")
    for version in ("3.11", "3.12", "3.13")
]


def requirements(extras: Sequence[str]) -> Iterator[Requirement]:
    """Yield the requirements of the package and of its extras, and of the extras that these name."""
    if extras == ["build"]:
        yield from map(Requirement, PYPROJECT["build-system"]["requires"])
        return
    for text in PROJECT["dependencies"] + [
        text for extra in extras for text in PROJECT["optional-dependencies"][extra]
    ]:
        requirement = Requirement(text)
        if requirement.name == PROJECT["name"]:
            yield from requirements(sorted(requirement.extras))
        else:
            yield requirement


def locked(lock: str) -> list[tuple[Requirement, int]]:
    """Return the packages of a lock file, and the number of hashes of each."""
    text = (ROOT / "requirements" / f"{lock}.txt").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return [
        (Requirement(line.split(" --hash")[0]), len(re.findall("--hash=sha256:[0-9a-f]{64}", line))) for line in lines
    ]


def applies(requirement: Requirement, machine: dict[str, str]) -> bool:
    return requirement.marker is None or requirement.marker.evaluate(machine)


@pytest.mark.parametrize("lock", LOCKS)
@pytest.mark.parametrize("machine", MACHINES, ids=lambda each: f"{each['platform_machine']}-{each['python_version']}")
def test_the_lock_is_current(lock: str, machine: dict[str, str]) -> None:
    versions: dict[str, str] = {}
    for each, _ in locked(lock):
        if applies(each, machine):
            name = canonicalize_name(each.name)
            assert name not in versions, f"{lock}.txt has two versions of {name} for one machine"
            versions[name] = str(each.specifier).removeprefix("==")
    for requirement in requirements(LOCKS[lock]):
        name = canonicalize_name(requirement.name)
        if applies(requirement, machine) and name != "torch":
            found = versions.get(name)
            assert found, f"{lock}.txt lacks {name}: run make lock"
            assert requirement.specifier.contains(found), f"{lock}.txt has {name} {found}: run make lock"


@pytest.mark.parametrize("lock", LOCKS)
def test_every_package_has_one_version_and_hashes_and_no_index(lock: str) -> None:
    packages = locked(lock)
    assert len(packages) >= 5
    assert [str(each) for each, hashes in packages if not hashes or not str(each.specifier).startswith("==")] == []
    assert [str(each) for each, _ in packages if each.url] == []
    assert not re.search("://|--(extra-)?index|--find-links", (ROOT / "requirements" / f"{lock}.txt").read_text())


def test_the_images_have_the_versions_of_the_tests() -> None:
    tested = {str(each) for each, _ in locked("dev")}
    for lock in ("export", "server-cpu"):
        # A requirement for fewer machines has another marker in another lock.
        versions = {str(each).partition(";")[0].strip() for each, _ in locked(lock)}
        assert versions <= {each.partition(";")[0].strip() for each in tested}


def test_only_the_cuda_image_has_nvidias_libraries_and_no_server_image_has_torch() -> None:
    names = {lock: {canonicalize_name(each.name) for each, _ in locked(lock)} for lock in LOCKS}
    assert {"onnxruntime-gpu", "nvidia-cublas", "nvidia-cudnn-cu13"} <= names["server-cuda"]
    assert not any(name.startswith("nvidia-") for lock in ("server-cpu", "export", "dev") for name in names[lock])
    # The Makefile and the Dockerfile name its version, and the index of a build for CPUs.
    assert not any("torch" in each for each in names.values())


@pytest.mark.parametrize("lock", ["dev", "export"])
def test_the_lock_has_what_torch_requires(lock: str) -> None:
    # A build for CUDA requires further packages, with markers, in versions that torch fixes.
    always = [each for each in map(Requirement, requires("torch") or []) if each.marker is None]
    assert len(always) >= 5
    for requirement in always:
        name = canonicalize_name(requirement.name)
        found = [
            str(each.specifier).removeprefix("==") for each, _ in locked(lock) if canonicalize_name(each.name) == name
        ]
        assert found, f"{lock}.txt lacks {name}: add it to requirements/torch.in, and run make lock"
        assert all(map(requirement.specifier.contains, found)), f"{lock}.txt has {name} {found}: run make lock"
