"""The command `attend`."""

import io
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from rich.console import Console

from headwaiter_client.cli import main
from headwaiter_client.cli.console import bars
from headwaiter_client.cli.heat_map import find_token, save_heat_map
from headwaiter_proto import encoder_pb2 as pb
from tests.client.fake_server import FakeServer

PNG = b"\x89PNG\r\n\x1a\n"


def test_attend_prints_what_the_query_looks_at_as_bars(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["attend", "The cat sat", "--layer", "1", "--head", "2", "--query", "sat", "--address", server.address]
    assert main(command) == 0
    title, *lines = capsys.readouterr().out.splitlines()
    assert title == "layer 1, head 2: what sat (position 3) looks at"
    # In proportion to 7, 8, 9, 10 and 11.
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


def test_attend_draws_the_head_as_a_heat_map(server: FakeServer, tmp_path: Path) -> None:
    path = tmp_path / "map.png"
    command = ["attend", "The cat sat", "--query", "0", "--png", str(path), "--address", server.address]
    assert main(command) == 0
    image = imread(path)
    assert image.ndim == 3
    assert min(image.shape[:2]) >= 400
    assert len(np.unique(image.reshape(-1, image.shape[2]), axis=0)) > 25  # One colour a weight, at least.


def test_attend_names_the_tokens_where_the_query_is_none(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["attend", "The cat", "--query", "dog", "--address", server.address]) == 1
    said = capsys.readouterr().err
    assert said == (
        "headwaiter-client: --query 'dog' is no token of the text and no position in it: "
        "the tokens are 0 [CLS], 1 The, 2 cat, 3 [SEP]\n"
    )


def test_attend_needs_a_reply_with_tokens(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    # The stand-in makes none of a blank text.
    assert main(["attend", " ", "--query", "0", "--address", server.address]) == 1
    assert capsys.readouterr().err == "headwaiter-client: the server's reply names no tokens\n"


def test_a_heat_map_names_the_extra_it_needs(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SystemExit, match=r"--png draws with matplotlib: pip install 'headwaiter\[cli\]'"):
        main(["attend", "a", "--query", "a", "--png", str(tmp_path / "m.png"), "--address", server.address])
    assert not (tmp_path / "m.png").exists()


def test_a_heat_map_that_cannot_be_saved_is_named(
    server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "missing" / "map.png"
    assert main(["attend", "a", "--query", "a", "--png", str(path), "--address", server.address]) == 1
    assert capsys.readouterr().err == f"headwaiter-client: {path}: No such file or directory\n"


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
def test_a_query_is_found_by_its_text_with_or_without_marks_or_by_its_position(
    tokens: list[str], query: str, position: int
) -> None:
    assert find_token(tokens, query) == position


@pytest.mark.parametrize("query", ["dog", "2", "-1", "²"])
def test_a_query_that_is_not_there_is_answered_with_the_tokens(query: str) -> None:
    with pytest.raises(
        ValueError, match=f"^--query '{query}' is no token of the text and no position in it: .* 0 the, 1 cat$"
    ):
        find_token(["the", "cat"], query)


def test_bars_are_as_long_as_the_values_and_labels_are_no_markup() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(bars(["[red]", "cat", "sat"], ["a", "b", "c"], [0.5, 0.25, 0.0]))
    lines = [line.split() for line in console.export_text().splitlines()]
    assert lines == [["[red]", "a", "█" * 40], ["cat", "b", "█" * 20], ["sat", "c"]]


def test_tokens_of_any_script_and_dollar_signs_are_drawn_without_a_word(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save_heat_map(["$", "雨", "$x_{", "##s"], np.eye(4), "layer 0, head 1", tmp_path / "map.image")
    assert (tmp_path / "map.image").read_bytes().startswith(PNG)
