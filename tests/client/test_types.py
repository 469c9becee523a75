"""Programs that use the client as the pages for users do pass mypy --strict and pyright."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documents import CLIENT, EMBED_A_CORPUS, GETTING_STARTED, README, RERANK, ROOT, blocks

PAGES = (README, GETTING_STARTED, EMBED_A_CORPUS, RERANK, CLIENT)
PYRIGHT = Path(__file__).parent / "pyright" / "node_modules" / ".bin" / "pyright"
# Each statement is a mistake that a type checker must find, so the types of the client are known and are not `Any`.
MISTAKES = """
from headwaiter_client import Client, FakeEncoder

client = Client(transport=FakeEncoder())
client.encode(["a"]).pooled.shpae
client.encode(["a"]).similarity(3).shpae
client.encode(["a"], pooling="middle")
client.model().tasks.add("rerank")
client.attend("a").tokens[0].shpae
client.classify(["a"]).best[0].lable
client.tokenize(["a"], strings=True).strings[0].shpae
client.count_tokens(["a"])[0].shpae
Client("localhost:50051", priority="high")
Client("localhost:50051", timeout=3)
"""


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Return a folder with one program for each page, and with one of mistakes."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for page in PAGES:
        (folder / f"{page.stem.replace('-', '_')}.py").write_text("\n".join(blocks(page, "python")))
    (folder / "mistakes.py").write_text(MISTAKES)
    return folder


def lines_of_mistakes() -> set[int]:
    lines = MISTAKES.splitlines()
    return set(range(lines.index("client = Client(transport=FakeEncoder())") + 2, len(lines) + 1))


@pytest.mark.usefixtures("starts_processes")
def test_mypy_accepts_the_programs_of_the_pages_and_finds_mistakes(programs: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--output=json", *map(str, sorted(programs.glob("*.py")))]
    # The folder of the repository has the configuration with the paths of the packages, and the cache of `make lint`.
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    errors = [each for each in found if each["severity"] == "error"]
    assert not [each for each in errors if Path(each["file"]).name != "mistakes.py"], run.stdout + run.stderr
    assert {each["line"] for each in errors} == lines_of_mistakes(), run.stdout


@pytest.mark.usefixtures("starts_processes")
@pytest.mark.exhaustive
def test_pyright_accepts_the_programs_of_the_pages_and_finds_mistakes(programs: Path) -> None:
    if not PYRIGHT.exists():
        pytest.skip("pyright is missing: run `npm ci` in tests/client/pyright")
    paths = [str(ROOT / package) for package in ("proto", "playground", "client")]
    (programs / "pyrightconfig.json").write_text(json.dumps({"extraPaths": paths, "reportUnusedExpression": False}))
    command = [str(PYRIGHT), "--outputjson", "--pythonpath", sys.executable, "-p", str(programs)]
    run = subprocess.run(command, cwd=programs, capture_output=True, text=True, check=False)
    found = json.loads(run.stdout)["generalDiagnostics"]
    assert not [each for each in found if Path(each["file"]).name != "mistakes.py"]
    assert {each["range"]["start"]["line"] + 1 for each in found} == lines_of_mistakes()


@pytest.mark.parametrize("package", ["client/headwaiter_client", "proto/headwaiter_proto"])
def test_the_packages_say_that_they_are_typed(package: str) -> None:
    assert (ROOT / package / "py.typed").exists()
