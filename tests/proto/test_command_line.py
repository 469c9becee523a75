"""The parser of all three commands."""

import pytest

from headwaiter_proto.command_line import CommandParser


def _parser() -> CommandParser:
    parser = CommandParser(prog="command")
    parser.add_version()
    commands = parser.add_subparsers()
    encode = commands.add_parser("encode")
    encode.add_argument("--dtype")
    return parser


@pytest.mark.parametrize(
    ("arguments", "suggested"),
    [
        (["--verson"], "--version"),
        (["encode", "--dtipe", "int8"], "--dtype"),
        (["encode", "--dtipe=int8"], "--dtype"),
        (["encode", "--dtyp", "int8"], "--dtype"),
        (["encode", "--output", "x"], None),
        (["encode", "more"], None),
    ],
)
def test_an_unknown_flag_is_refused_with_the_flag_that_it_may_mean(
    arguments: list[str], suggested: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        _parser().parse_args(arguments)
    assert ended.value.code == 2
    printed = capsys.readouterr().err
    assert arguments[-1] in printed
    assert ("did you mean" in printed) == (suggested is not None)
    assert suggested is None or f"did you mean {suggested}?" in printed
