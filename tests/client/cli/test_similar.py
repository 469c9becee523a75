"""The command `similar`."""

from pathlib import Path

import pytest

from headwaiter_client.cli import main
from headwaiter_proto import encoder_pb2 as pb
from tests.client.cli.conftest import Lasting


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "texts"
    file.write_text("rain on stone\nthe cat sat\nthe cat :cat: [red]\n")
    return file


def test_the_nearest_texts_come_first_as_they_are_with_their_lines(
    fake: Lasting, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["similar", "the cat sat", str(file), "--top", "2"]) == 0
    (same, cosine), (near, lower) = (
        (place, float(cosine)) for cosine, _, place in (line.partition("  ") for line in _lines(capsys))
    )
    assert (same, near) == ("line 2  the cat sat", "line 3  the cat :cat: [red]")
    assert 1 - 1e-4 <= cosine <= 1 + 1e-4
    assert lower < 1


def test_the_query_may_have_a_prompt_of_its_own(fake: Lasting, file: Path) -> None:
    assert main(["similar", "sat", str(file), "--prompt", "passage", "--query-prompt", "query"]) == 0
    prompts: dict[str, str] = {}
    for request in fake.requests:
        assert isinstance(request, pb.EncodeRequest)
        prompts |= dict.fromkeys(request.texts.values, request.texts.prompt)
    assert prompts.pop("sat") == "query"
    assert list(prompts.values()) == ["passage"] * 3


def test_a_query_that_is_too_long_is_told_from_a_line(
    fake: Lasting, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["similar", "a b c d e f g h", str(file)]) == 1
    assert capsys.readouterr().err.startswith("headwaiter-client: text 1 of the query has 10 tokens")


def _lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()
