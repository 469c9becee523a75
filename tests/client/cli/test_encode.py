"""The subcommand `encode`: its requests, its file and its output."""

import io
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from headwaiter_client import Client, FakeEncoder
from headwaiter_proto import encoder_pb2 as pb
from tests.client.cli.conftest import EncodeJob, ReusableFake, be_terminal, connect
from tests.support.client.client_runner import RecordingEncoder


def test_encode_saves_one_vector_per_line_and_prints_the_counts(job: EncodeJob) -> None:
    job.texts.write_bytes("one two\r\na form\ffeed\nünïcode\u2028line".encode())
    job.out = job.out.with_name("out")
    assert job.run() == 0
    assert job.printed.startswith("3 sentences, 13 tokens, ")
    lines = ["one two", "a form\ffeed", "ünïcode\u2028line"]
    np.testing.assert_array_equal(np.load(job.out), Client(transport=FakeEncoder()).encode(lines).pooled)
    job.texts.write_text("a\n")
    assert job.run("--overwrite") == 0
    assert job.printed.startswith("1 sentence, 3 tokens, ")


def test_encode_reads_standard_input(job: EncodeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    # A container that sets no locale has an ASCII standard input.
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("one\ntwö\n".encode()), "ascii"))
    job.texts = Path("-")
    assert job.run() == 0
    assert job.fake.texts == ["one", "twö"]


def without_pooled(_: pb.EncodeRequest, reply: pb.EncodeResponse) -> None:
    reply.ClearField("pooled")


@pytest.mark.parametrize(
    ("make_fake", "facts"),
    [
        (lambda: ReusableFake(vocabulary_size=0), ["the model fake ", "texts"]),
        (lambda: RecordingEncoder(without_pooled), ["the model fake ", "pooled"]),
        (lambda: FakeEncoder(sparse=True), ["the vectors of fake ", "sparse"]),
    ],
)
def test_a_model_without_a_vector_for_each_text_is_named(
    job: EncodeJob, make_fake: Callable[[], FakeEncoder], facts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch, make_fake())
    error = job.refusal()
    assert error.startswith(facts[0])
    assert facts[1] in error
    assert job.files == []


def test_options_reach_the_server(job: EncodeJob) -> None:
    options = ["--prompt", "query", "--truncation", "left", "--dimensions", "3", "--dtype", "float16", "--no-normalize"]
    assert job.run(*options) == 0
    for request in job.fake.requests:
        assert isinstance(request, pb.EncodeRequest)
        assert (request.texts.prompt, request.truncation) == ("query", pb.TRUNCATION_LEFT)
        assert request.priority == pb.PRIORITY_BULK
        assert request.output == pb.OutputOptions(dimensions=3, dtype=pb.DATA_TYPE_FLOAT16, normalize=False)
    vectors = np.load(job.out)
    assert (vectors.shape, vectors.dtype) == ((6, 3), np.float16)


def test_the_priority_can_be_interactive(job: EncodeJob) -> None:
    assert job.run("--priority", "interactive") == 0
    assert {request.priority for request in job.fake.requests if isinstance(request, pb.EncodeRequest)} == {
        pb.PRIORITY_INTERACTIVE
    }


def test_int8_vectors_are_saved_with_their_scales(job: EncodeJob) -> None:
    assert job.run("--dtype", "int8") == 0
    saved = np.load(job.out)
    expected = Client(transport=FakeEncoder()).encode(job.texts.read_text().splitlines(), dtype="int8").pooled_int8
    np.testing.assert_array_equal(saved["values"], expected.values)
    np.testing.assert_array_equal(saved["scale"], expected.scales)


def test_encode_prints_the_number_of_texts_that_were_cut(job: EncodeJob) -> None:
    job.texts.write_text("a b c d e f\na b c d e f g\n")
    assert job.run("--truncation", "right") == 0
    first, second = job.printed.splitlines()
    assert first.startswith("2 sentences, 16 tokens, ")
    assert re.findall(r"\d+", second) == ["1", "8"]


def test_a_terminal_shows_a_progress_bar_with_the_rate(job: EncodeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    be_terminal(monkeypatch)
    assert job.run() == 0
    assert re.search(r"Encoding .*6/6\S* [\d,]+/s .*\d:\d\d:\d\d", job.error)
