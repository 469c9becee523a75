"""The command on its own: no settings from outside, a terminal wide enough for any line, a server without a network."""

from pathlib import Path

import pytest

from headwaiter_client import AsyncFakeEncoder, FakeEncoder
from headwaiter_client.transport.grpc_transport import Flight
from headwaiter_proto import encoder_pb2 as pb


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ADDRESS", "TIMEOUT_S", "TOKEN_FILE", "TLS", "TLS_CA", "TLS_CERT", "TLS_KEY"):
        monkeypatch.delenv(f"HEADWAITER_CLIENT_{name}", raising=False)
    monkeypatch.setenv("COLUMNS", "200")


class Lasting(FakeEncoder):
    """Answers one call of the command after another.

    Attributes:
        at: what to raise from a request, by a text it holds.
    """

    def __init__(self, model: str = "fake", precision: pb.Precision = pb.PRECISION_FP32) -> None:
        super().__init__(max_tokens=8, max_request_sequences=2, model=model)
        self._model_ref.precision = precision
        self.at: dict[str, BaseException] = {}

    @property
    def texts(self) -> list[str]:
        """What it was sent and did not raise at, in alphabetical order."""
        return sorted(text for request in self.requests for text in request.texts.values)

    def unary(
        self, method: str, request: bytes, timeout_s: float, request_id: str | None = None, flight: Flight | None = None
    ) -> bytes:
        for text, error in self.at.items():
            if text.encode() in request:
                raise error
        return super().unary(method, request, timeout_s, request_id, flight)

    def close(self) -> None:
        """Stays open for the next."""


def connect(monkeypatch: pytest.MonkeyPatch, fake: Lasting) -> Lasting:
    """Lets a stand-in answer whatever clients connect to."""
    monkeypatch.setattr("headwaiter_client.client.GrpcTransport", lambda *_: fake)
    monkeypatch.setattr("headwaiter_client.aio.AsyncGrpcTransport", lambda *_: AsyncFakeEncoder(fake))
    return fake


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Lasting:
    return connect(monkeypatch, Lasting())


@pytest.fixture
def six(tmp_path: Path) -> Path:
    """A file of six texts, two requests and two more."""
    file = tmp_path / "texts"
    file.write_text("".join(f"text {number}\n" for number in range(6)))
    return file
