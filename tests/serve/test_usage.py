"""Wrong usage of `headwaiter serve` is told before anything is read."""

import sys

import pytest

from headwaiter_serve.cli import main


@pytest.mark.parametrize(
    ("arguments", "words", "others"),
    [((), "MODEL", "FLAGS\n"), (("--threads", "2", "my-model"), "headwaiter serve MODEL --threads", "did you mean")],
    ids=["no model", "flags before the model"],
)
def test_the_model_comes_first(
    arguments: tuple[str, ...],
    words: str,
    others: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["headwaiter", "serve", *arguments])
    with pytest.raises(SystemExit) as raised:
        main()
    assert raised.value.code == 2
    error = capsys.readouterr().err.partition("error: ")[2]
    assert words in error
    assert others not in error
