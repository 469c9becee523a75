"""Write the tables of families into docs/reference/supported-models.md, in eight minutes.

Run it with `python -m tests.support.export.family_table`.
"""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.export.family_examples import EXAMPLES
from tests.support.export.refused_examples import REFUSED

DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "supported-models.md"
BEGIN, END = "<!-- families -->\n", "<!-- /families -->\n"
BEGIN_REFUSED, END_REFUSED = "<!-- refused -->\n", "<!-- /refused -->\n"


def main() -> None:
    """Measure each family, and replace both tables."""
    _replace(BEGIN, "".join(_lines()), END)
    _replace(BEGIN_REFUSED, refused_table(), END_REFUSED)


def _replace(begin: str, table: str, end: str) -> None:
    before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(end)
    DOCUMENT.write_text(f"{before}{begin}{table}{end}{after}", encoding="utf-8")


def refused_table() -> str:
    """Return the table of checkpoints that are refused."""
    return "| refused | for example | because |\n|---|---|---|\n" + "".join(each.line for each in REFUSED)


def _lines() -> Iterator[str]:
    yield "| family | `model_type` | checkpoints of the family | heads | difference |\n|---|---|---|---|---|\n"
    for example in EXAMPLES:
        with TemporaryDirectory() as folder:
            difference = example.difference(Path(folder))
        types = ", ".join(f"`{each}`" for each in example.model_types)
        line = f"| {example.label} | {types} | {', '.join(example.known)} | {example.heads} | {difference:.1e} |\n"
        print(line, end="", flush=True)
        yield line


if __name__ == "__main__":
    main()
