"""Fixtures for the commands: no outside settings, a wide terminal, and a fake server without a network."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headwaiter_client import AsyncFakeEncoder, Client, FakeEncoder
from headwaiter_client.cli import main
from headwaiter_proto import encoder_pb2 as pb
from tests.support.client.fake_server import FakeServer


@pytest.fixture(autouse=True)
def no_outside_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ADDRESS", "TIMEOUT_S", "TOKEN_FILE", "TLS", "TLS_CA", "TLS_CERT", "TLS_KEY", "METRICS"):
        monkeypatch.delenv(f"HEADWAITER_CLIENT_{name}", raising=False)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def server(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    """A fake server that the commands call, unless a flag names another address."""
    monkeypatch.setenv("HEADWAITER_CLIENT_ADDRESS", server.address)
    return server


def be_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let standard error be a terminal; not in a fixture, because `capsys` replaces it after the set-up."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)


class Command:
    """The command `headwaiter-client`.

    Attributes:
        printed: what the last run wrote to standard output.
        error: what the last run wrote to standard error.
    """

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.printed = self.error = ""
        self._capsys = capsys

    @property
    def arguments(self) -> tuple[object, ...]:
        """The first arguments of each run."""
        return ()

    def run(self, *arguments: object) -> int:
        """Run the command, and return its exit status."""
        status = main([*map(str, (*self.arguments, *arguments))])
        self.printed, self.error = self._capsys.readouterr()
        return status

    def refusal(self, *arguments: object) -> str:
        """Run the command, which must print nothing but one line with its error; return this line."""
        assert (self.run(*arguments), self.printed) == (1, "")
        name, _, message = self.error.partition(": ")
        assert (name, message.count("\n")) == ("headwaiter-client", 1)
        return message.removesuffix("\n")

    def wrong_usage(self, *arguments: object) -> str:
        """Run the command with wrong arguments, and return what it writes to standard error."""
        with pytest.raises(SystemExit, match=r"^2$"):
            self.run(*arguments)
        return self._capsys.readouterr().err


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


class ReusableFake(FakeEncoder):
    """A fake server that answers several commands, one after another.

    Attributes:
        errors_by_text: the error to raise from a request that holds a text.
    """

    def __init__(self, precision: pb.Precision = pb.PRECISION_FP32, **options: Any) -> None:
        super().__init__(**{"max_tokens": 8, "max_request_sequences": 2, **options})
        self._model_ref.precision = precision
        self.errors_by_text: dict[str, BaseException] = {}

    @property
    def texts(self) -> list[str]:
        """The texts of all answered requests, in alphabetical order."""
        return sorted(text for request in self.requests for text in request.texts.values)

    def unary(self, method: str, request: bytes, *rest: Any) -> bytes:
        for text, error in self.errors_by_text.items():
            if text.encode() in request:
                raise error
        return super().unary(method, request, *rest)

    def close(self) -> None:
        """Stay open for the next command."""


def connect(monkeypatch: pytest.MonkeyPatch, fake: FakeEncoder) -> None:
    """Make every client connect to the fake server."""
    monkeypatch.setattr("headwaiter_client.client.GrpcTransport", lambda *_: fake)
    monkeypatch.setattr("headwaiter_client.aio.AsyncGrpcTransport", lambda *_: AsyncFakeEncoder(fake))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> ReusableFake:
    fake = ReusableFake()
    connect(monkeypatch, fake)
    return fake


@pytest.fixture
def six_texts(tmp_path: Path) -> Path:
    """A file of six texts, which the fake server takes in three requests."""
    file = tmp_path / "texts"
    file.write_text("".join(f"text {number}\n" for number in range(6)))
    return file


class EncodeJob(Command):
    """The command `encode` on a file of six texts, which the fake server takes in three requests.

    Attributes:
        fake: the server.
        texts: the file of texts.
        out: the output.
    """

    def __init__(self, fake: ReusableFake, texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
        super().__init__(capsys)
        self.fake, self.texts, self.out = fake, texts, texts.with_name("out.npy")

    @property
    def arguments(self) -> tuple[object, ...]:
        return ("encode", self.texts, "-o", self.out)

    @property
    def partial(self) -> Path:
        """The rows of an incomplete output."""
        return self.out.with_name(f"{self.out.name}.partial")

    @property
    def journal(self) -> Path:
        """The journal of an incomplete output."""
        return self.out.with_name(f"{self.out.name}.journal")

    @property
    def work_files(self) -> list[str]:
        """The names of the work files."""
        return [self.journal.name, self.partial.name]

    @property
    def files(self) -> list[str]:
        """The names of the output and of its work files, as far as they exist."""
        return sorted(path.name for path in self.out.parent.glob("out*"))

    def interrupt(self, *flags: str) -> None:
        """Interrupt a run after four texts."""
        self.fake.errors_by_text["text 4"] = KeyboardInterrupt()
        assert self.run(*flags) == 130
        self.fake.errors_by_text.clear()
        self.fake.requests.clear()

    def check_output(self, **options: Any) -> None:
        """Check that the output holds the vectors of all texts, and that no work file is left."""
        encoding = Client(transport=FakeEncoder()).encode(self.texts.read_text().splitlines(), **options)
        np.testing.assert_array_equal(np.load(self.out), encoding.pooled)
        assert self.files == [self.out.name]


@pytest.fixture
def job(fake: ReusableFake, six_texts: Path, capsys: pytest.CaptureFixture[str]) -> EncodeJob:
    return EncodeJob(fake, six_texts, capsys)
