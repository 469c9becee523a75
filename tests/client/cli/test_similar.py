"""The subcommand `similar`."""

from pathlib import Path

import pytest

from headwaiter_proto import encoder_pb2 as pb
from tests.client.cli.conftest import Command, ReusableFake

pytestmark = pytest.mark.usefixtures("fake")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "texts"
    file.write_text("rain on stone\nthe cat sat\nthe cat :cat: [red]\n")
    return file


def test_the_most_similar_texts_are_printed_first_with_their_lines(file: Path, command: Command) -> None:
    assert command.run("similar", "the cat sat", file, "--top", "2") == 0
    (same, cosine), (near, lower) = (
        (place, float(cosine)) for cosine, _, place in (line.partition("  ") for line in command.printed.splitlines())
    )
    assert (same, near) == ("line 2  the cat sat", "line 3  the cat :cat: [red]")
    assert 1 - 1e-4 <= cosine <= 1 + 1e-4
    assert lower < 1


def test_the_query_can_have_another_prompt_than_the_file(fake: ReusableFake, file: Path, command: Command) -> None:
    assert command.run("similar", "sat", file, "--prompt", "passage", "--query-prompt", "query") == 0
    prompts: dict[str, str] = {}
    for request in fake.requests:
        assert isinstance(request, pb.EncodeRequest)
        prompts |= dict.fromkeys(request.texts.values, request.texts.prompt)
    assert prompts.pop("sat") == "query"
    assert list(prompts.values()) == ["passage"] * 3


def test_the_error_for_a_query_that_is_too_long_names_the_query(file: Path, command: Command) -> None:
    error = command.refusal("similar", "a b c d e f g h", file)
    assert "the query" in error
    assert "10" in error
