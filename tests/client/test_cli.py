"""The command: exit status, what it prints, and what it writes."""

import io
import sys
from pathlib import Path

import grpc
import numpy as np
import pytest
from matplotlib.image import imread

from headwaiter_client import cli
from headwaiter_proto import encoder_pb2 as pb
from tests.client.fake_server import MODEL, FakeServer


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ADDRESS", "TIMEOUT_S", "TOKEN_FILE", "TLS_CA", "TLS_CERT", "TLS_KEY"):
        monkeypatch.delenv(f"HEADWAITER_CLIENT_{name}", raising=False)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def sentences(tmp_path: Path) -> Path:
    file = tmp_path / "sentences.txt"
    file.write_bytes("one two\r\na form\ffeed\nünïcode\u2028line".encode())
    return file


def test_encode_saves_one_vector_a_line_and_prints_the_figures(
    server: FakeServer, sentences: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "vectors"
    assert cli.main(["encode", str(sentences), "-o", str(output), "--address", server.address]) == 0

    assert _texts(server) == [["one two", "a form\ffeed", "ünïcode\u2028line"]]
    np.testing.assert_array_equal(np.load(output), [[0] * 3, [0.5] * 3, [1] * 3])
    assert capsys.readouterr().out.startswith("3 sentences, 13 tokens, ")


def test_encode_reads_standard_input(server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As in a container that sets no locale.
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("one\ntwö\n".encode()), "ascii"))
    assert cli.main(["encode", "-", "-o", str(tmp_path / "out.npy"), "--address", server.address]) == 0
    assert _texts(server) == [["one", "twö"]]


def test_a_file_goes_in_requests_that_the_server_takes_and_comes_back_in_order(
    server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.description.limits.max_sequences = 16
    (tmp_path / "texts").write_text("".join(f"text {line}\n" for line in range(40)))
    assert _encode(server, tmp_path) == 0
    assert sorted(map(len, _texts(server))) == [8, 16, 16]
    rows = [*range(16), *range(16), *range(8)]
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), [[row / 2] * 3 for row in rows])
    assert capsys.readouterr().out.startswith("40 sentences, 160 tokens, ")


@pytest.mark.parametrize("blank", ["", " \t"])
def test_a_blank_line_is_named_before_anything_is_sent(
    server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], blank: str
) -> None:
    (tmp_path / "texts").write_text(f"one\n{blank}\nthree\n")
    assert _encode(server, tmp_path) == 1
    sentence = f"headwaiter-client: line 2 of {tmp_path / 'texts'} is empty: each line is a text\n"
    assert capsys.readouterr() == ("", sentence)
    assert server.requests == []


def test_a_file_without_lines_is_refused(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    assert cli.main(["encode", "-", "-o", "out.npy", "--address", server.address]) == 1
    assert capsys.readouterr().err == "headwaiter-client: standard input is empty: it needs one text a line\n"


@pytest.mark.parametrize(
    ("complaint", "sentence"),
    [
        ("texts.values[{}] has 9 tokens", "line 4 of {} has 9 tokens"),
        ("sequence {}: not a number", "line 4 of {}: not a number"),
        ("sequence {}0 is another", "line 4 of {}: sequence 30 is another"),
    ],
)
def test_what_the_server_says_of_a_text_is_said_of_its_line(
    server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], complaint: str, sentence: str
) -> None:
    server.bad_text, server.complaint = "bad", complaint
    (tmp_path / "texts").write_text("a\nb\nc\nbad\n")
    assert _encode(server, tmp_path) == 1
    assert capsys.readouterr() == ("", f"headwaiter-client: {sentence.format(tmp_path / 'texts')}\n")
    assert not (tmp_path / "out.npy").exists()


def test_what_the_server_says_of_no_text_is_said_as_it_is(
    server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "texts").write_text("a\nb\n")
    server.bad_text, server.complaint = "b", "too much text"
    assert _encode(server, tmp_path) == 1
    assert capsys.readouterr().err == "headwaiter-client: too much text\n"


def test_a_model_that_takes_no_texts_is_sent_none(
    server: FakeServer, sentences: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.description.max_text_tokens = 0
    assert cli.main(["encode", str(sentences), "-o", "out.npy", "--address", server.address]) == 1
    assert capsys.readouterr().err == "headwaiter-client: the model tiny takes no texts\n"
    assert _texts(server) == []


def test_encode_says_when_the_model_pools_nothing(
    server: FakeServer, sentences: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.pools = False
    assert cli.main(["encode", str(sentences), "-o", str(tmp_path / "out.npy"), "--address", server.address]) == 1
    assert capsys.readouterr().err == "headwaiter-client: the model tiny has no pooled output\n"
    assert not (tmp_path / "out.npy").exists()


@pytest.mark.parametrize("text", [b"\xff", None], ids=["not UTF-8", "missing"])
def test_encode_says_in_a_line_what_is_wrong_with_the_file(
    server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: bytes | None
) -> None:
    if text is not None:
        (tmp_path / "texts").write_bytes(text)
    assert cli.main(["encode", str(tmp_path / "texts"), "-o", "out.npy", "--address", server.address]) == 1
    error = capsys.readouterr().err
    assert error.startswith("headwaiter-client: ")
    assert error.count("\n") == 1


def test_attend_prints_what_the_query_looks_at_as_bars(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["attend", "The cat sat", "--layer", "1", "--head", "2", "--query", "sat", "--address", server.address]
    assert cli.main(command) == 0
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
    assert cli.main(command) == 0
    image = imread(path)
    assert image.ndim == 3
    assert min(image.shape[:2]) >= 400
    assert len(np.unique(image.reshape(-1, image.shape[2]), axis=0)) > 25  # One colour a weight, at least.


def test_attend_names_the_tokens_where_the_query_is_none(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["attend", "The cat", "--query", "dog", "--address", server.address]) == 1
    said = capsys.readouterr().err
    assert said == (
        "headwaiter-client: --query 'dog' is no token of the text and no position in it: "
        "the tokens are 0 [CLS], 1 The, 2 cat, 3 [SEP]\n"
    )


def test_attend_needs_a_reply_with_tokens(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    # The stand-in makes none of a blank text.
    assert cli.main(["attend", " ", "--query", "0", "--address", server.address]) == 1
    assert capsys.readouterr().err == "headwaiter-client: the server's reply names no tokens\n"


def test_a_heat_map_names_the_extra_it_needs(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SystemExit, match=r"--png draws with matplotlib: pip install 'headwaiter\[cli\]'"):
        cli.main(["attend", "a", "--query", "a", "--png", str(tmp_path / "m.png"), "--address", server.address])
    assert not (tmp_path / "m.png").exists()


def test_probe_is_quiet_about_a_server_that_serves(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["probe", "--address", server.address]) == 0
    assert capsys.readouterr() == ("", "")


def test_probe_fails_while_the_server_does_not_serve(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.serving = False
    assert cli.main(["probe", "--address", server.address]) == 1
    sentence = f"headwaiter-client: the server at {server.address} does not take requests\n"
    assert capsys.readouterr() == ("", sentence)


def test_probe_fails_when_nothing_answers(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.stop()
    assert cli.main(["probe", "--address", server.address]) == 1
    error = capsys.readouterr().err
    assert error.startswith("headwaiter-client: ")
    assert error.count("\n") == 1


def test_models_shows_how_a_model_runs_and_how_far_it_is_from_pytorch(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.description = pb.GetModelResponse(
        model=MODEL,
        takes_texts=True,
        max_tokens=512,
        max_text_tokens=256,
        limits=pb.RequestLimits(max_sequences=4096, max_tokens=65536, max_message_bytes=67108864),
        execution=pb.Execution(
            provider="cpu",
            fallback_reason="no CUDA [driver] here",
            precision=pb.PRECISION_FP32,
            graph="g.onnx",
            token_budget=1024,
            cost=pb.BatchCost(
                launch_s=0.0025,
                token_s=1.1e-4,
                padded_row_s=4e-6,
                cell_s=5e-9,
                error_ratio=0.061,
                service_tokens_per_s=8123.4,
                remembered=True,
            ),
            self_check=pb.SelfCheck(
                sequences=32,
                pooled_max_abs=1.5e-7,
                hidden_max_abs=2e-6,
                pooled_max_relative=3e-7,
                hidden_max_relative=4e-7,
                min_cosine=0.999,
                mean_cosine=1,
            ),
        ),
        parity=[
            pb.GraphParity(graph="other.onnx", same_nearest_neighbour=0.5),
            pb.GraphParity(graph="g.onnx", same_nearest_neighbour=0.9625),
        ],
    )
    assert cli.main(["models", "--address", server.address]) == 0
    shown = capsys.readouterr().out
    for text in (
        MODEL.name,
        MODEL.digest,
        "cpu (no CUDA [driver] here)",
        "fp32",
        "512 tokens",
        "256 tokens",
        "4,096 sequences, 65,536 tokens, 67,108,864 bytes",
        "1,024 tokens at most, 8,123 tokens/s: 2.5 ms, 110 µs a token, 5 ns a cell (remembered, ±6.1%)",
        "32 sequences: pooled within 1.5e-07 (3.0e-07 of the scale), hidden within 2.0e-06 (4.0e-07 of the scale)",
        "cosine 0.999000 or more, 1.000000 on average",
        "the one that fp32 finds, for 96.2% of sentences",
    ):
        assert text in shown


def test_models_names_no_text_limit_for_a_model_that_takes_none(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.description = pb.GetModelResponse(model=MODEL, execution=pb.Execution(provider="cuda"))
    assert cli.main(["models", "--address", server.address]) == 0
    shown = capsys.readouterr().out
    assert "cuda" in shown
    assert "text limit" not in shown
    assert "tokens/s" not in shown


@pytest.mark.parametrize("command", [["encode", "texts", "-o", "out.npy"], ["models"], ["attend", "a", "--query", "a"]])
def test_commands_that_print_tables_name_the_extra_they_need(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with pytest.raises(SystemExit, match=r"pip install 'headwaiter\[cli\]'"):
        cli.main([*command, "--address", server.address])
    assert server.requests == []


def test_probe_needs_no_extra(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert cli.main(["probe", "--address", server.address]) == 0


def test_flags_can_be_given_as_environment_variables(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    monkeypatch.setenv("HEADWAITER_CLIENT_ADDRESS", server.address)
    monkeypatch.setenv("HEADWAITER_CLIENT_TIMEOUT_S", "5000")
    monkeypatch.setenv("HEADWAITER_CLIENT_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("HEADWAITER_CLIENT_TLS_CA", "")  # As compose passes a variable that is not set.
    assert cli.main(["probe"]) == 0
    assert server.metadata["authorization"] == "Bearer s3cret"
    assert server.remaining_s > 4000


def test_a_flag_is_stronger_than_its_variable(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAITER_CLIENT_ADDRESS", "localhost:1")
    assert cli.main(["probe", "--address", server.address]) == 0


def test_any_tls_flag_turns_tls_on(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["probe", "--address", server.address, "--tls-cert", "client.pem"]) == 1
    assert "a client certificate needs its key" in capsys.readouterr().err


def test_the_servers_sentence_reaches_the_user(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.refuse(grpc.StatusCode.UNAUTHENTICATED, "the token is wrong")
    assert cli.main(["models", "--address", server.address]) == 1
    assert capsys.readouterr().err == "headwaiter-client: the token is wrong\n"


def _encode(server: FakeServer, folder: Path) -> int:
    output = str(folder / "out.npy")
    return cli.main(["encode", str(folder / "texts"), "-o", output, "--address", server.address])


def _texts(server: FakeServer) -> list[list[str]]:
    return [list(request.texts.values) for request in server.requests if isinstance(request, pb.EncodeRequest)]
