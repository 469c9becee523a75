"""The pages for users: their blocks of code, tables and links, for the tests that run or check them."""

import re
import shlex
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
INDEX = DOCS / "README.md"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
TESTS = ROOT / "tests" / "README.md"
EMBED_A_CORPUS = DOCS / "tutorials" / "embed-a-corpus.md"
GETTING_STARTED = DOCS / "tutorials" / "getting-started.md"
IMAGES = DOCS / "tutorials" / "images.md"
OWN_ENCODER = DOCS / "tutorials" / "own-encoder.md"
RERANK = DOCS / "tutorials" / "rerank.md"
EXPORT_CHECKPOINT = DOCS / "how-to" / "export-a-checkpoint.md"
EXPORT_MODULE = DOCS / "how-to" / "export-a-module.md"
EXPORT_ONNX_FILE = DOCS / "how-to" / "export-an-onnx-file.md"
SEND_IMAGES_AND_SOUNDS = DOCS / "how-to" / "send-images-and-sounds.md"
KUBERNETES = DOCS / "how-to" / "serve-on-kubernetes.md"
BUNDLE = DOCS / "reference" / "bundle.md"
CLIENT = DOCS / "reference" / "client.md"
COMMANDS = DOCS / "reference" / "commands.md"
COMING_FROM_SENTENCE_TRANSFORMERS = DOCS / "how-to" / "coming-from-sentence-transformers.md"
ENCODER_CONFIG = DOCS / "reference" / "encoder-config.md"
ERRORS = DOCS / "reference" / "errors.md"
HTTP = DOCS / "reference" / "http.md"
LOG = DOCS / "reference" / "log-and-traces.md"
METRICS = DOCS / "reference" / "metrics.md"
SERVER = DOCS / "reference" / "server.md"
ARCHITECTURE = DOCS / "explanation" / "architecture.md"
NUMERICS = DOCS / "explanation" / "numerics.md"
COMING_FROM_HOSTED = DOCS / "how-to" / "coming-from-openai-and-cohere.md"
COMING_FROM = sorted(
    {*(DOCS / "how-to").glob("coming-from-*.md")} - {COMING_FROM_SENTENCE_TRANSFORMERS, COMING_FROM_HOSTED}
)
PAGES = [README, CONTRIBUTING, ROOT / "CHANGELOG.md", ROOT / "SECURITY.md", TESTS, *sorted(DOCS.glob("**/*.md"))]

_OUR_COMMANDS = ("headwaiter", "headwaiter-client", "headwaiter-export", "headwaiter-server")
# Commands that install something, that run these tests, that need a server, or that some machines lack.
_SKIPPED_COMMANDS = ("curl", "docker", "make", "pip")


def blocks(page: Path, language: str) -> list[str]:
    """Return the code blocks of a page in a language, in order."""
    text = page.read_text(encoding="utf-8")
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```", text, re.DOTALL | re.MULTILINE)
    assert found, f"{page.name} has no code block in {language}"
    return [textwrap.dedent(code) for _, code in found]


def steps(page: Path) -> list[tuple[str, str]]:
    """Return the code blocks of a page with their languages, in order."""
    text = page.read_text(encoding="utf-8")
    return re.findall(r"^```(\w+)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def printed_result(page: Path) -> str:
    """Return the text block that directly follows the first Python block of a page."""
    found = re.search(r"^```python\n.*?^```\n\n```text\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert found, f"{page.name} shows no result of its first Python block"
    return found[1]


def commands(page: Path, folder: Path) -> list[list[str]]:
    """Run the shell blocks of a page in a folder, except our own commands; return our commands as lists of words."""
    noted = [f'{name}() {{ printf "%q " {name} "$@" >> commands; echo >> commands; }}' for name in _OUR_COMMANDS]
    skipped = [f"{name}() {{ :; }}" for name in _SKIPPED_COMMANDS]
    script = "\n".join([*noted, *skipped, "> commands", *blocks(page, "sh")])
    subprocess.run(["bash", "-euc", script], cwd=folder, check=True)
    return [shlex.split(line) for line in (folder / "commands").read_text().splitlines()]


def table_rows(page: Path, heading: str = "") -> Iterator[list[str]]:
    """Yield the cells of each table row, without the headers, of a page or of its section with a heading of level 2."""
    text = page.read_text("utf-8")
    if heading:
        section = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
        assert section, f"{page.name} has no section {heading}"
        text = section[1]
    for body in re.findall(r"^\|[-| ]+\|\n((?:^\|.*\n)+)", text, re.MULTILINE):
        for line in body.splitlines():
            yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def links(page: Path) -> list[str]:
    """Return the targets of a page's links and pictures that are files or headings of this repository."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    found = re.findall(r'\]\(([^)\s]+)\)|src="([^"]+)"', text)
    return [link or picture for link, picture in found if "://" not in link + picture]


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
