"""The subcommand `similar`."""

from pathlib import Path

import pytest

from headwaiter_client.cli import main
from headwaiter_proto import encoder_pb2 as pb
from tests.client.cli.conftest import ReusableFake


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "texts"
    file.write_text("rain on stone\nthe cat sat\nthe cat :cat: [red]\n")
    return file


def test_the_most_similar_texts_are_printed_first_with_their_lines(
    fake: ReusableFake, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["similar", "the cat sat", str(file), "--top", "2"]) == 0
    (same, cosine), (near, lower) = (
        (place, float(cosine)) for cosine, _, place in (line.partition("  ") for line in _lines(capsys))
    )
    assert (same, near) == ("line 2  the cat sat", "line 3  the cat :cat: [red]")
    assert 1 - 1e-4 <= cosine <= 1 + 1e-4
    assert lower < 1


def test_the_query_can_have_another_prompt_than_the_file(fake: ReusableFake, file: Path) -> None:
    assert main(["similar", "sat", str(file), "--prompt", "passage", "--query-prompt", "query"]) == 0
    prompts: dict[str, str] = {}
    for request in fake.requests:
        assert isinstance(request, pb.EncodeRequest)
        prompts |= dict.fromkeys(request.texts.values, request.texts.prompt)
    assert prompts.pop("sat") == "query"
    assert list(prompts.values()) == ["passage"] * 3


def test_the_error_for_a_query_that_is_too_long_names_the_query(
    fake: ReusableFake, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["similar", "a b c d e f g h", str(file)]) == 1
    error = capsys.readouterr().err
    assert "the query" in error
    assert "10" in error


def _lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()
