"""Who may import whom: the plan of the house, read from the import statements."""

import ast
import filecmp
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {name: ROOT / name / f"headwaiter_{name}" for name in ("proto", "server", "export", "client")}
SERVER = "headwaiter_server"
# Layers of the server, the lowest first: a layer imports from itself and from those before it.
LAYERS = ["runtime", "scheduling", "models", "rpc"]
# What the modules beside the layers may import of the server.
MODULES: dict[str, set[str]] = {
    "errors": set(),
    "config": set(),
    "histogram": set(),
    "metrics": {"histogram", "runtime", "scheduling"},
    "app": {"config", "metrics", "models", "rpc", "runtime", "scheduling"},
    "cli": {"app", "config", "runtime"},
}


def _imports(file: Path) -> Iterator[str]:
    """Walks over what a file imports, wherever in it the statement stands: `a.b` for `from a import b`."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} imports relatively"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _ours(file: Path) -> set[str]:
    return {name for name in _imports(file) if name.startswith("headwaiter_")}


def _foreign(folder: Path) -> set[str]:
    """Collects the packages that are neither Python's nor ours."""
    tops = {name.partition(".")[0] for file in folder.rglob("*.py") for name in _imports(file)}
    return {top for top in tops - sys.stdlib_module_names if not top.startswith("headwaiter_")}


@pytest.mark.parametrize(
    ("package", "allowed"),
    [
        ("proto", ("headwaiter_proto",)),
        ("client", ("headwaiter_client", "headwaiter_proto")),
        ("server", ("headwaiter_server", "headwaiter_proto")),
        ("export", ("headwaiter_export", "headwaiter_proto", "headwaiter_server.runtime")),
    ],
)
def test_a_package_imports_only_those_it_stands_on(package: str, allowed: tuple[str, ...]) -> None:
    files = list(PACKAGES[package].rglob("*.py"))
    assert len(files) > 1
    for file in files:
        for name in _ours(file):
            assert any(name == one or name.startswith(f"{one}.") for one in allowed), f"{file} imports {name}"


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_of_the_server_imports_nothing_upwards(layer: str) -> None:
    below = LAYERS[: LAYERS.index(layer) + 1]
    beside = {
        "runtime": (),
        "scheduling": ("errors",),
        "models": ("errors", "config"),
        "rpc": ("errors", "config", "metrics"),
    }[layer]
    for file in (PACKAGES["server"] / layer).glob("*.py"):
        used = {name.split(".")[1] for name in _ours(file) if name.startswith(f"{SERVER}.")}
        assert used <= {*below, *beside}, file


@pytest.mark.parametrize("module", MODULES)
def test_a_module_of_the_server_imports_nothing_upwards(module: str) -> None:
    file = PACKAGES["server"] / f"{module}.py"
    used = {name.split(".")[1] for name in _ours(file) if name.startswith(f"{SERVER}.")}
    assert used <= MODULES[module]


def test_every_module_of_the_server_has_its_place_in_the_plan() -> None:
    files = PACKAGES["server"].rglob("*.py")
    places = {file.relative_to(PACKAGES["server"]).parts[0].removesuffix(".py") for file in files}
    assert places == {"__init__", *LAYERS, *MODULES}


@pytest.mark.parametrize(
    ("folder", "allowed"),
    [
        (PACKAGES["server"] / "runtime", {"numpy", "onnxruntime", "google"}),
        (PACKAGES["server"] / "scheduling", {"numpy", "sortedcontainers"}),
    ],
)
def test_the_lower_layers_know_nothing_of_grpc_or_requests(folder: Path, allowed: set[str]) -> None:
    assert _foreign(folder) <= allowed
    google = {name for file in folder.rglob("*.py") for name in _imports(file) if name.startswith("google")}
    assert all(name.startswith("google.protobuf") for name in google)


def test_only_the_export_imports_torch_or_onnx() -> None:
    heavy = {"torch", "onnx", "onnxscript", "safetensors", "transformers"}
    for package in ("proto", "server", "client"):
        assert not _foreign(PACKAGES[package]) & heavy


def test_the_server_loads_neither_torch_nor_onnx() -> None:
    code = "import sys, headwaiter_server.app; print(*{'torch', 'onnx', 'transformers'} & set(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []


def test_the_generated_code_is_what_the_contract_generates(tmp_path: Path) -> None:
    protos = [str(path.relative_to(ROOT)) for path in PACKAGES["proto"].glob("*.proto")]
    for arguments in (
        [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", *protos],
        [f"--grpc_python_out={tmp_path}", "proto/headwaiter_proto/encoder.proto"],
    ):
        subprocess.run([sys.executable, "-m", "grpc_tools.protoc", "-I", "proto", *arguments], cwd=ROOT, check=True)
    made = sorted(path.name for path in (tmp_path / "headwaiter_proto").iterdir())
    same, different, missing = filecmp.cmpfiles(tmp_path / "headwaiter_proto", PACKAGES["proto"], made, shallow=False)
    assert (different, missing) == ([], []), "run `make proto`"
    assert same == sorted(path.name for path in PACKAGES["proto"].glob("*_pb2*"))


def test_the_page_about_the_wire_is_what_the_contract_says() -> None:
    made = subprocess.run([sys.executable, "proto/api_page.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert made.stdout == (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), "run `make proto`"
