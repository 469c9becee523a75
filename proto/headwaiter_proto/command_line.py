"""The parser of arguments of all three commands: --version, and the flag that a mistyped flag may mean."""

import argparse
from difflib import get_close_matches
from typing import Any, NoReturn


class CommandParser(argparse.ArgumentParser):
    """Parses arguments as argparse does, and suggests a flag for an unknown one, as Python 3.14 does for choices.

    It takes no abbreviated flags, because a flag of a later version could make an abbreviation ambiguous.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def add_version(self) -> None:
        """Add the flag --version."""
        self.add_argument("--version", action=_PrintVersion, help="print the version and exit")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Return the arguments and no others; end with an error that names an unknown flag."""
        # A command with subcommands calls this method of the subcommand's parser.
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._suggestion(unknown[0])}")
        return known, unknown

    def _suggestion(self, flag: str) -> str:
        flags = [name for name in self._option_string_actions if name.startswith("--")]
        similar = get_close_matches(flag.partition("=")[0], flags, n=1, cutoff=0.7)
        return f": did you mean {similar[0]}?" if similar else ""


class _PrintVersion(argparse.Action):
    """Prints the version of the package, whose look-up would otherwise slow every command down."""

    def __init__(self, **options: Any) -> None:
        super().__init__(nargs=0, **options)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import version

        print(f"{parser.prog} {version('headwaiter')}")
        parser.exit()
