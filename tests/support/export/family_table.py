"""Write the tables of families into docs/reference/supported-models.md.

Run it with `python -m tests.support.export.family_table`.
"""

from pathlib import Path

from tests.support.export.family_examples import EXAMPLES, Example
from tests.support.export.refused_examples import REFUSED

DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "supported-models.md"
BEGIN, END = "<!-- families -->\n", "<!-- /families -->\n"
BEGIN_REFUSED, END_REFUSED = "<!-- refused -->\n", "<!-- /refused -->\n"


def main() -> None:
    """Replace both tables."""
    _replace(BEGIN, families_table(), END)
    _replace(BEGIN_REFUSED, refused_table(), END_REFUSED)


def _replace(begin: str, table: str, end: str) -> None:
    before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(end)
    DOCUMENT.write_text(f"{before}{begin}{table}{end}{after}", encoding="utf-8")


def families_table() -> str:
    """Return the table of families."""
    head = "| family | `model_type` | checkpoints of the family | heads |\n|---|---|---|---|\n"
    return head + "".join(map(_line, EXAMPLES))


def refused_table() -> str:
    """Return the table of checkpoints that are refused."""
    return "| refused | for example | because |\n|---|---|---|\n" + "".join(each.line for each in REFUSED)


def _line(example: Example) -> str:
    types = ", ".join(f"`{each}`" for each in example.model_types)
    return f"| {example.label} | {types} | {', '.join(example.known)} | {example.heads} |\n"


if __name__ == "__main__":
    main()
