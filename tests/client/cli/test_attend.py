"""The subcommand `attend`."""

import io
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from rich.console import Console

from headwaiter_client.cli.attend import find_token, save_heat_map
from headwaiter_client.cli.console import bar_chart
from headwaiter_proto import encoder_pb2 as pb
from tests.client.cli.conftest import Command
from tests.support.client.fake_server import FakeServer

PNG = b"\x89PNG\r\n\x1a\n"


def test_attend_prints_the_weights_of_the_query_token_as_bars(server: FakeServer, command: Command) -> None:
    assert command.run("attend", "The cat sat", "--layer", "1", "--head", "2", "--query", "sat") == 0
    title, *lines = command.printed.splitlines()
    for fact in ("layer 1", "head 2", "sat", "position 3"):
        assert fact in title
    # The fake server's weights are in proportion to 7, 8, 9, 10 and 11.
    assert [line.split()[:2] for line in lines] == [
        ["[CLS]", "0.1556"],
        ["The", "0.1778"],
        ["cat", "0.2000"],
        ["sat", "0.2222"],
        ["[SEP]", "0.2444"],
    ]
    lengths = [line.count("█") for line in lines]
    assert lengths == sorted(lengths)
    assert lengths[-1] == 40
    (request,) = server.requests
    assert isinstance(request, pb.AttendRequest)
    assert (list(request.layers), list(request.heads), list(request.texts.values)) == ([1], [2], ["The cat sat"])


@pytest.mark.usefixtures("server")
def test_attend_draws_a_heat_map(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "map.png"
    assert command.run("attend", "The cat sat", "--query", "0", "--png", path) == 0
    image = imread(path)
    assert image.ndim == 3
    assert min(image.shape[:2]) >= 400
    assert len(np.unique(image.reshape(-1, image.shape[2]), axis=0)) > 25  # At least one colour per weight.


@pytest.mark.usefixtures("server")
def test_attend_fails_if_the_reply_contains_no_tokens(command: Command) -> None:
    # The fake server returns no tokens for a blank text.
    assert "tokens" in command.refusal("attend", " ", "--query", "0")


@pytest.mark.usefixtures("server")
def test_a_heat_map_without_matplotlib_names_the_extra(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SystemExit, match=r"--png .*matplotlib.*pip install '.\[cli\]'"):
        command.run("attend", "a", "--query", "a", "--png", tmp_path / "m.png")
    assert not (tmp_path / "m.png").exists()


@pytest.mark.usefixtures("server")
def test_the_error_for_a_heat_map_that_cannot_be_saved_names_the_file(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "missing" / "map.png"
    assert command.run("attend", "a", "--query", "a", "--png", path) == 1
    assert command.error.startswith(f"headwaiter-client: {path}: ")


@pytest.mark.parametrize(
    ("tokens", "query", "position"),
    [
        (["[CLS]", "the", "cat", "the"], "the", 1),
        (["un", "##believ", "##able"], "able", 2),
        (["▁The", "▁cat"], "cat", 1),
        (["The", "Ġcat", "Ġthe"], "the", 2),
        (["[CLS]", "sat", "[SEP]"], "Sat", 1),
        (["7", "of", "0"], "0", 2),
        (["7", "of", "9"], "1", 1),
        (["##", "a"], "##", 0),
        (["▁", "▁"], "1", 1),
    ],
)
def test_a_query_matches_a_token_with_or_without_its_mark_or_a_position(
    tokens: list[str], query: str, position: int
) -> None:
    assert find_token(tokens, query) == position


@pytest.mark.parametrize("query", ["dog", "2", "-1", "²"])
def test_the_error_for_an_unknown_query_lists_the_tokens(query: str) -> None:
    with pytest.raises(ValueError, match=f"^--query '{query}' .* 0 the, 1 cat$"):
        find_token(["the", "cat"], query)


def test_bars_are_in_proportion_to_the_values_and_labels_are_not_markup() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(bar_chart(["[red]", "cat", "sat"], ["a", "b", "c"], [0.5, 0.25, 0.0]))
    lines = [line.split() for line in console.export_text().splitlines()]
    assert lines == [["[red]", "a", "█" * 40], ["cat", "b", "█" * 20], ["sat", "c"]]


def test_tokens_of_any_script_and_dollar_signs_are_drawn_without_a_warning(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save_heat_map(["$", "雨", "$x_{", "##s"], np.eye(4), "layer 0, head 1", tmp_path / "map.image")
    assert (tmp_path / "map.image").read_bytes().startswith(PNG)
