"""The import rules between packages, layers and modules, checked on the import statements of every file."""

import ast
import filecmp
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {
    name: ROOT / name / f"headwaiter_{name}" for name in ("proto", "playground", "server", "export", "serve", "client")
}
SERVER = "headwaiter_server"
# The folders and the modules of the server, with those that each may import: rpc, http -> requests -> engine ->
# models -> scheduling -> runtime, never upwards.
LAYERS: dict[str, set[str]] = {
    "runtime": set(),
    "concurrency": set(),
    "settings": set(),
    "scheduling": {"runtime", "concurrency", "settings"},
    "inputs": {"runtime"},
    "tracing": {"scheduling", "settings"},
    "metrics": {"runtime", "scheduling", "tracing"},
    "log_lines": {"concurrency"},
    "models": {"runtime", "scheduling", "inputs", "concurrency", "settings", "metrics"},
    "engine": {"runtime", "scheduling", "models", "settings", "metrics"},
    "requests": {"runtime", "scheduling", "inputs", "models", "engine", "settings", "metrics", "log_lines", "tracing"},
    "open_inference": {"scheduling", "models", "requests", "metrics"},
    "rpc": {"runtime", "scheduling", "models", "requests", "open_inference", "concurrency", "settings", "metrics"},
    "http": {"requests", "open_inference", "models", "concurrency", "settings", "metrics", "log_lines"},
    "processes": {
        "runtime",
        "concurrency",
        "scheduling",
        "inputs",
        "models",
        "engine",
        "settings",
        "metrics",
        "tracing",
        "log_lines",
        "front_end",
    },
}
MODULES: dict[str, set[str]] = {
    "front_end": LAYERS.keys() - {"processes"},
    "app": {"front_end", *LAYERS},
    "signals": {"app", "settings", "processes"},
    "cli": {"front_end", "settings", "log_lines", "signals", "processes", "runtime"},
    "__main__": {"cli"},
}
EXPORT = "headwaiter_export"
# The folders and modules of the export, with those that each may import: bundle -> graphs, checkpoints -> encoder ->
# config.
ROOMS: dict[str, set[str]] = {
    "config": set(),
    "encoder": {"config"},
    "checkpoints": {"encoder", "config"},
    "graphs": {"encoder", "config"},
    "bundle": {"graphs", "checkpoints", "encoder", "config"},
    "cli": {"bundle", "graphs", "checkpoints", "encoder", "config"},
    "__main__": {"cli"},
}


@cache
def _imports(file: Path) -> set[str]:
    """Return the names that a file imports anywhere in it; `a.b` for `from a import b`."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} imports relatively"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def _headwaiter_imports(file: Path) -> set[str]:
    return {name for name in _imports(file) if name.startswith("headwaiter_")}


def _third_party(folder: Path) -> set[str]:
    """Return the packages that the files of a folder import, except Headwaiter's and the standard library's."""
    tops = {name.partition(".")[0] for file in folder.rglob("*.py") for name in _imports(file)}
    return {top for top in tops - sys.stdlib_module_names if not top.startswith("headwaiter_")}


@pytest.mark.parametrize(
    ("package", "allowed"),
    [
        ("proto", ("headwaiter_proto",)),
        ("playground", ("headwaiter_playground", "headwaiter_proto")),
        ("client", ("headwaiter_client", "headwaiter_playground", "headwaiter_proto")),
        ("server", ("headwaiter_server", "headwaiter_playground", "headwaiter_proto")),
        ("export", ("headwaiter_export", "headwaiter_proto", "headwaiter_server.runtime")),
        (
            "serve",
            (
                *("headwaiter_serve", "headwaiter_proto", "headwaiter_export"),
                *("headwaiter_server.runtime", "headwaiter_server.settings"),
            ),
        ),
    ],
)
def test_a_package_imports_only_the_packages_below_it(package: str, allowed: tuple[str, ...]) -> None:
    files = list(PACKAGES[package].rglob("*.py"))
    assert len(files) > 1
    for file in files:
        for name in _headwaiter_imports(file):
            assert any(f"{name}.".startswith(f"{prefix}.") for prefix in allowed), f"{file} imports {name}"


def test_no_layer_and_no_module_of_the_server_imports_upwards_and_each_has_a_rule() -> None:
    names = set()
    for file in PACKAGES["server"].rglob("*.py"):
        name = file.relative_to(PACKAGES["server"]).parts[0].removesuffix(".py")
        names.add(name)
        imported = {each.split(".")[1] for each in _headwaiter_imports(file) if each.startswith(f"{SERVER}.")}
        assert imported <= ({name, *LAYERS[name]} if name in LAYERS else MODULES.get(name, set())), file
    assert names == {"__init__", *LAYERS, *MODULES}


def _modules(package: str) -> dict[str, set[str]]:
    """Return the modules of a package, with the modules of the package that each imports."""
    top = PACKAGES[package].name
    files = {
        ".".join((top, *file.relative_to(PACKAGES[package]).with_suffix("").parts)).removesuffix(".__init__"): file
        for file in PACKAGES[package].rglob("*.py")
    }
    imported = {module: _headwaiter_imports(file) for module, file in files.items()}
    # `a.b` is a module, or the name b of module a.
    return {
        module: {name if name in files else name.rpartition(".")[0] for name in names if name.startswith(f"{top}.")}
        for module, names in imported.items()
    }


def test_no_room_of_the_export_imports_upwards_and_every_module_has_a_room() -> None:
    modules = _modules("export")
    # `from headwaiter_export import export_module` imports its module when it is used.
    assert modules.pop(EXPORT) == {f"{EXPORT}.bundle.own_module"}
    assert {module.split(".")[1] for module in modules} == {*ROOMS}
    for module, imported in modules.items():
        room = module.split(".")[1]
        assert {name.split(".")[1] for name in imported} <= {room, *ROOMS[room]}, module


@pytest.mark.parametrize("package", PACKAGES)
def test_the_modules_of_a_package_import_each_other_in_no_circle(package: str) -> None:
    modules = _modules(package)
    assert package in ("playground", "serve") or sum(map(len, modules.values())) > len(modules)
    # Imports for type checkers count, too.
    TopologicalSorter(modules).prepare()  # raises CycleError, with the circle


@pytest.mark.parametrize(
    ("folder", "allowed"),
    [
        (PACKAGES["export"] / "config", set()),
        (PACKAGES["export"] / "encoder", {"numpy", "torch", "typing_extensions"}),
        (
            PACKAGES["export"] / "checkpoints",
            # onnx_paths.py asks an ONNX file for the files of its weights.
            {"huggingface_hub", "numpy", "onnx", "safetensors", "tokenizers", "torch", "transformers"}
            | {"typing_extensions"},
        ),
        (PACKAGES["server"] / "runtime", {"numpy", "onnxruntime", "openvino", "google"}),
        (PACKAGES["server"] / "scheduling", {"numpy", "sortedcontainers"}),
    ],
)
def test_lower_layers_import_neither_grpc_nor_other_packages(folder: Path, allowed: set[str]) -> None:
    assert _third_party(folder) <= allowed
    google = {name for file in folder.rglob("*.py") for name in _imports(file) if name.startswith("google")}
    assert all(name.startswith("google.protobuf") for name in google)


def test_one_module_opens_all_sessions_of_onnxruntime() -> None:
    """A session with other options gives wrong results in int8 on processors without VNNI."""
    calls = {
        file.relative_to(ROOT).as_posix()
        for folder in (*PACKAGES, "testbed", "bench", "examples", "tests", "docs")
        for file in (ROOT / folder).rglob("*.py")
        if "InferenceSession" in (text := file.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("InferenceSession")
    }
    # The programs of other servers open the portable graph in float32, and import nothing of this server. A study
    # compares with ONNX Runtime alone.
    others = {"bench/peers/model.py", "bench/studies/onnx_files.py"}
    assert calls == {"server/headwaiter_server/runtime/graph.py", *others}


def test_the_rules_import_only_what_the_bare_client_has() -> None:
    assert _third_party(PACKAGES["proto"] / "rules") == {"google", "grpc", "numpy"}


def test_only_the_export_imports_torch_or_onnx() -> None:
    export_only = {"torch", "onnx", "onnxscript", "safetensors", "transformers"}
    for package in ("proto", "playground", "server", "serve", "client"):
        assert not _third_party(PACKAGES[package]) & export_only


@pytest.mark.usefixtures("starts_processes")
@pytest.mark.parametrize(
    ("modules", "names"),
    [
        (("headwaiter_server.signals",), {"torch", "onnx", "transformers", "opentelemetry"}),
        (
            ("headwaiter_serve.cli", "headwaiter_serve.bundle_cache"),
            {"torch", "onnx", "onnxruntime", "transformers"},
        ),
    ],
    ids=["server", "serve"],
)
def test_a_program_does_not_load_the_packages_that_it_does_not_need(modules: tuple[str, ...], names: set[str]) -> None:
    code = f"import sys, {', '.join(modules)}; print(*{names} & set(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []


@pytest.mark.usefixtures("starts_processes")
def test_the_generated_code_is_up_to_date_with_the_proto_files(tmp_path: Path) -> None:
    protos = [str(path.relative_to(ROOT)) for path in PACKAGES["proto"].glob("*.proto")]
    for arguments in (
        [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", *protos],
        [f"--grpc_python_out={tmp_path}", "proto/headwaiter_proto/encoder.proto"],
    ):
        subprocess.run([sys.executable, "-m", "grpc_tools.protoc", "-I", "proto", *arguments], cwd=ROOT, check=True)
    names = sorted(path.name for path in (tmp_path / "headwaiter_proto").iterdir())
    same, different, missing = filecmp.cmpfiles(tmp_path / "headwaiter_proto", PACKAGES["proto"], names, shallow=False)
    assert (different, missing) == ([], []), "run `make proto`"
    assert same == sorted(path.name for path in PACKAGES["proto"].glob("*_pb2*"))


@pytest.mark.usefixtures("starts_processes")
def test_the_api_page_is_up_to_date_with_the_proto_files() -> None:
    made = subprocess.run([sys.executable, "proto/api_page.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert made.stdout == (ROOT / "docs" / "reference" / "grpc.md").read_text(encoding="utf-8"), "run `make proto`"
