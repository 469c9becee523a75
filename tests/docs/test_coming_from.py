"""What the pages for users of other servers name exists: flags, metrics, and commands."""

import dataclasses
import re
import shlex
from pathlib import Path

import pytest

from headwaiter_export import cli
from headwaiter_server.settings.flags import Settings, flag, read_settings
from tests.support.documents import COMING_FROM, METRICS, blocks, table_rows

each_page = pytest.mark.parametrize("page", COMING_FROM, ids=lambda page: page.name)
FLAGS_OF_SERVER = {flag(field.name) for field in dataclasses.fields(Settings)}


def ours(page: Path) -> list[str]:
    """Return the cells of a page's tables that are about Headwaiter: the last of each row."""
    return [cells[-1] for cells in table_rows(page)]


def flags_of_export() -> set[str]:
    (subcommands,) = (each.choices for each in cli._parser()._actions if isinstance(each.choices, dict))
    return {
        name for subcommand in subcommands.values() for action in subcommand._actions for name in action.option_strings
    }


def test_there_is_a_page_for_each_server() -> None:
    assert [page.stem.removeprefix("coming-from-") for page in COMING_FROM] == ["infinity", "tei", "triton", "vllm"]


@each_page
def test_the_flags_of_ours_exist(page: Path) -> None:
    named = {name for cell in ours(page) for name in re.findall(r"`(--[a-z0-9-]+)", cell)}
    assert len(named & FLAGS_OF_SERVER) >= 10
    assert named <= FLAGS_OF_SERVER | flags_of_export()


@each_page
def test_the_metrics_of_ours_exist(page: Path) -> None:
    documented = {name for names, _ in table_rows(METRICS) for name in re.findall(r"`(headwaiter_\w+)", names)}
    named = {name for cell in ours(page) for name in re.findall(r"`(headwaiter_\w+)", cell)}
    assert len(named) >= 4
    assert {re.sub("_(sum|count)$", "", name) for name in named} <= documented


@each_page
def test_the_commands_parse(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("models").mkdir()
    for line in "".join(blocks(page, "sh")).splitlines():
        program, *arguments = shlex.split(line)
        if program == "headwaiter-export":
            cli._parser().parse_args(arguments)
        else:
            served = arguments[1:] if arguments[0] == "serve" else arguments
            assert read_settings(served, {}).http_api == "on"
