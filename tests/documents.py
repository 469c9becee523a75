"""The blocks of code in the pages for users, for the tests that run them."""

import re
import shlex
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
CLIENT = ROOT / "docs" / "client.md"

_OURS = ("headwaiter-client", "headwaiter-export", "headwaiter-server")
# What installs, what runs these tests, and what not every machine has.
_NOT_RUN = ("docker", "make", "pip")


def blocks(page: Path, language: str) -> list[str]:
    """Return the blocks of a page in a language, in order."""
    found = re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert found, f"{page.name} has none in {language}"
    return found


def commands(page: Path, folder: Path) -> list[list[str]]:
    """Run the shell blocks of a page in a folder, but for our own commands: return these, as lists of words."""
    noted = [f'{name}() {{ printf "%q " {name} "$@" >> commands; echo >> commands; }}' for name in _OURS]
    skipped = [f"{name}() {{ :; }}" for name in _NOT_RUN]
    script = "\n".join([*noted, *skipped, "> commands", *blocks(page, "sh")])
    subprocess.run(["bash", "-euc", script], cwd=folder, check=True)
    return [shlex.split(line) for line in (folder / "commands").read_text().splitlines()]
