"""Write the table of families into docs/models.md: `python -m tests.export.family_table` takes two minutes."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.export.family_examples import EXAMPLES

DOCUMENT = Path(__file__).parents[2] / "docs" / "models.md"
BEGIN, END = "<!-- families -->\n", "<!-- /families -->\n"


def main() -> None:
    """Measure each family, and replace the table."""
    before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    table = "".join(_lines())
    DOCUMENT.write_text(f"{before}{BEGIN}{table}{END}{after}", encoding="utf-8")


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
