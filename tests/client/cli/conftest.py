"""Fixtures for the commands: no outside settings, a wide terminal, and a fake server without a network."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headwaiter_client import AsyncFakeEncoder, Client, FakeEncoder
from headwaiter_client.cli import main
from headwaiter_proto import encoder_pb2 as pb


@pytest.fixture(autouse=True)
def no_outside_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ADDRESS", "TIMEOUT_S", "TOKEN_FILE", "TLS", "TLS_CA", "TLS_CERT", "TLS_KEY", "METRICS"):
        monkeypatch.delenv(f"HEADWAITER_CLIENT_{name}", raising=False)
    monkeypatch.setenv("COLUMNS", "200")


class ReusableFake(FakeEncoder):
    """A fake server that answers several commands, one after another.

    Attributes:
        errors_by_text: the error to raise from a request that holds a text.
    """

    def __init__(self, model: str = "fake", precision: pb.Precision = pb.PRECISION_FP32) -> None:
        super().__init__(max_tokens=8, max_request_sequences=2, model=model)
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


def connect(monkeypatch: pytest.MonkeyPatch, fake: ReusableFake) -> ReusableFake:
    """Make every client connect to the fake server."""
    monkeypatch.setattr("headwaiter_client.client.GrpcTransport", lambda *_: fake)
    monkeypatch.setattr("headwaiter_client.aio.AsyncGrpcTransport", lambda *_: AsyncFakeEncoder(fake))
    return fake


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> ReusableFake:
    return connect(monkeypatch, ReusableFake())


@pytest.fixture
def six_texts(tmp_path: Path) -> Path:
    """A file of six texts, which the fake server takes in three requests."""
    file = tmp_path / "texts"
    file.write_text("".join(f"text {number}\n" for number in range(6)))
    return file


class EncodeJob:
    """The command `encode` on a file of six texts, which the fake server takes in three requests.

    Attributes:
        fake: the server.
        texts: the file of texts.
        out: the output.
        printed: what the last run wrote to standard output.
        error: what the last run wrote to standard error.
    """

    def __init__(self, fake: ReusableFake, texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.fake, self.texts, self.out = fake, texts, texts.with_name("out.npy")
        self.printed = self.error = ""
        self._capsys = capsys

    @property
    def files(self) -> list[str]:
        """The output and its work files."""
        return sorted(path.name for path in self.out.parent.glob("out*"))

    def run(self, *flags: str, out: Path | None = None) -> int:
        """Run the command, and return its exit status."""
        status = main(["encode", str(self.texts), "-o", str(out or self.out), *flags])
        self.printed, self.error = self._capsys.readouterr()
        return status

    def interrupt(self, *flags: str, out: Path | None = None) -> None:
        """Interrupt a run after four texts."""
        self.fake.errors_by_text["text 4"] = KeyboardInterrupt()
        assert self.run(*flags, out=out) == 130
        self.fake.errors_by_text.clear()
        self.fake.requests.clear()

    def check_output(self, **options: Any) -> None:
        """Check that the output holds the vectors of all texts, and that no work file is left."""
        encoding = Client(transport=FakeEncoder()).encode(self.texts.read_text().splitlines(), **options)
        np.testing.assert_array_equal(np.load(self.out), encoding.pooled)
        assert self.files == ["out.npy"]


@pytest.fixture
def job(fake: ReusableFake, six_texts: Path, capsys: pytest.CaptureFixture[str]) -> EncodeJob:
    return EncodeJob(fake, six_texts, capsys)
