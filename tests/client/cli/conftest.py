"""Fixtures for the commands: no outside settings, a wide terminal, and a fake server without a network."""

from pathlib import Path

import pytest

from headwaiter_client import AsyncFakeEncoder, FakeEncoder
from headwaiter_client.transport.interface import CancelScope
from headwaiter_proto import encoder_pb2 as pb


@pytest.fixture(autouse=True)
def no_outside_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ADDRESS", "TIMEOUT_S", "TOKEN_FILE", "TLS", "TLS_CA", "TLS_CERT", "TLS_KEY"):
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

    def unary(
        self,
        method: str,
        request: bytes,
        timeout_s: float,
        request_id: str | None = None,
        cancel_scope: CancelScope | None = None,
    ) -> bytes:
        for text, error in self.errors_by_text.items():
            if text.encode() in request:
                raise error
        return super().unary(method, request, timeout_s, request_id, cancel_scope)

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
