"""The rules import only what the bare client install has."""

import ast
import sys
from pathlib import Path

RULES = Path(__file__).parents[2] / "proto" / "headwaiter_proto" / "rules"


def _imported_packages(file: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return {name.partition(".")[0] for name in names} - sys.stdlib_module_names


def test_the_rules_import_only_numpy_protobuf_grpc_and_the_contract() -> None:
    files = list(RULES.glob("*.py"))
    assert len(files) > 1
    assert set().union(*map(_imported_packages, files)) == {"google", "grpc", "headwaiter_proto", "numpy"}
