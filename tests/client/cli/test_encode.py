"""The subcommand `encode`: its requests, its file and its output."""

import io
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from headwaiter_client import Client, FakeEncoder
from headwaiter_client.cli import main
from headwaiter_proto import encoder_pb2 as pb
from tests.client.cli.conftest import ReusableFake
from tests.support.client.fake_server import FakeServer


@pytest.fixture
def sentences(tmp_path: Path) -> Path:
    file = tmp_path / "sentences.txt"
    file.write_bytes("one two\r\na form\ffeed\nünïcode\u2028line".encode())
    return file


def test_encode_saves_one_vector_per_line_and_prints_the_counts(
    server: FakeServer, sentences: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "vectors"
    assert main(["encode", str(sentences), "-o", str(output), "--address", server.address]) == 0

    assert _texts(server) == [["one two", "a form\ffeed", "ünïcode\u2028line"]]
    np.testing.assert_array_equal(np.load(output), [[0] * 3, [0.5] * 3, [1] * 3])
    assert capsys.readouterr().out.startswith("3 sentences, 13 tokens, ")


def test_the_count_of_one_sentence_is_singular(
    fake: ReusableFake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "texts").write_text("a\n")
    assert main(["encode", str(tmp_path / "texts"), "-o", str(tmp_path / "out.npy")]) == 0
    assert capsys.readouterr().out.startswith("1 sentence, 3 tokens, ")


def test_encode_reads_standard_input(server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A container that sets no locale has an ASCII standard input.
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("one\ntwö\n".encode()), "ascii"))
    assert main(["encode", "-", "-o", str(tmp_path / "out.npy"), "--address", server.address]) == 0
    assert _texts(server) == [["one", "twö"]]


def test_a_file_is_split_into_requests_and_the_vectors_are_saved_in_order(
    server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.description.limits.max_sequences = 16
    (tmp_path / "texts").write_text("".join(f"text {line}\n" for line in range(40)))
    assert _encode(server, tmp_path) == 0
    assert sorted(map(len, _texts(server))) == [8, 16, 16]
    rows = [*range(16), *range(16), *range(8)]
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), [[row / 2] * 3 for row in rows])
    assert capsys.readouterr().out.startswith("40 sentences, 160 tokens, ")


@pytest.mark.parametrize(
    ("complaint", "sentence"),
    [
        ("sequence {} has 9 tokens", "line 4 of {} has 9 tokens"),
        ("sequence {}0 is another", "line 4 of {} failed: sequence 30 is another"),
        ("a reworded message about {}", "line 4 of {} failed: a reworded message about 3"),
    ],
)
def test_an_error_for_a_text_names_its_line(
    server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], complaint: str, sentence: str
) -> None:
    server.bad_text, server.complaint = "bad", complaint
    (tmp_path / "texts").write_text("a\nb\nc\nbad\n")
    assert _encode(server, tmp_path) == 1
    assert capsys.readouterr() == ("", f"headwaiter-client: {sentence.format(tmp_path / 'texts')}\n")
    assert not (tmp_path / "out.npy").exists()


def test_an_error_for_no_particular_text_is_printed_unchanged(
    server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "texts").write_text("a\nb\n")
    server.bad_text, server.complaint = "b", "too much text"
    assert _encode(server, tmp_path) == 1
    assert capsys.readouterr().err == "headwaiter-client: too much text\n"


def test_encode_sends_nothing_to_a_model_that_does_not_accept_texts(
    server: FakeServer, sentences: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.description.max_text_tokens = 0
    assert main(["encode", str(sentences), "-o", "out.npy", "--address", server.address]) == 1
    assert capsys.readouterr().err.startswith("headwaiter-client: the model tiny ")
    assert _texts(server) == []


def test_encode_fails_if_the_model_has_no_pooled_output(
    server: FakeServer, sentences: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.pools = False
    assert main(["encode", str(sentences), "-o", str(tmp_path / "out.npy"), "--address", server.address]) == 1
    error = capsys.readouterr().err
    assert error.startswith("headwaiter-client: the model tiny ")
    assert "pooled" in error
    assert not (tmp_path / "out.npy").exists()


def test_encode_writes_no_sparse_vectors(
    six_texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("headwaiter_client.client.GrpcTransport", lambda *_: FakeEncoder(sparse=True))
    assert main(["encode", str(six_texts), "-o", str(tmp_path / "out.npy")]) == 1
    assert "sparse" in capsys.readouterr().err


def test_options_reach_the_server(fake: ReusableFake, six_texts: Path, tmp_path: Path) -> None:
    options = ["--prompt", "query", "--truncation", "left", "--dimensions", "3", "--dtype", "float16", "--no-normalize"]
    assert main(["encode", str(six_texts), "-o", str(tmp_path / "out.npy"), *options]) == 0
    for request in fake.requests:
        assert isinstance(request, pb.EncodeRequest)
        assert (request.texts.prompt, request.truncation) == ("query", pb.TRUNCATION_LEFT)
        assert request.priority == pb.PRIORITY_BULK
        assert request.output == pb.OutputOptions(dimensions=3, dtype=pb.DATA_TYPE_FLOAT16, normalize=False)
    vectors = np.load(tmp_path / "out.npy")
    assert (vectors.shape, vectors.dtype) == ((6, 3), np.float16)


def test_the_priority_can_be_interactive(fake: ReusableFake, six_texts: Path, tmp_path: Path) -> None:
    assert main(["encode", str(six_texts), "-o", str(tmp_path / "out.npy"), "--priority", "interactive"]) == 0
    assert {request.priority for request in fake.requests if isinstance(request, pb.EncodeRequest)} == {
        pb.PRIORITY_INTERACTIVE
    }


def test_int8_vectors_are_saved_with_their_scales(fake: ReusableFake, six_texts: Path, tmp_path: Path) -> None:
    assert main(["encode", str(six_texts), "-o", str(tmp_path / "out.npy"), "--dtype", "int8"]) == 0
    saved = np.load(tmp_path / "out.npy")
    expected = Client(transport=FakeEncoder()).encode(six_texts.read_text().splitlines(), dtype="int8").pooled_int8
    assert expected is not None
    np.testing.assert_array_equal(saved["values"], expected.values)
    np.testing.assert_array_equal(saved["scale"], expected.scales)


def test_encode_prints_the_number_of_texts_that_were_cut(
    fake: ReusableFake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "texts").write_text("a b c d e f\na b c d e f g\n")
    command = ["encode", str(tmp_path / "texts"), "-o", str(tmp_path / "out.npy")]
    assert main([*command, "--truncation", "right"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("2 sentences, 16 tokens, ")
    assert re.findall(r"\d+", second) == ["1", "8"]


def test_a_terminal_shows_a_progress_bar_with_the_rate(
    fake: ReusableFake,
    six_texts: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["encode", str(six_texts), "-o", str(tmp_path / "out.npy")]) == 0
    assert re.search(r"Encoding .*6/6\S* [\d,]+/s .*\d:\d\d:\d\d", capsys.readouterr().err)


def _encode(server: FakeServer, folder: Path) -> int:
    output = str(folder / "out.npy")
    return main(["encode", str(folder / "texts"), "-o", output, "--address", server.address])


def _texts(server: FakeServer) -> list[list[str]]:
    return [list(request.texts.values) for request in server.requests if isinstance(request, pb.EncodeRequest)]
