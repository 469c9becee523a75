"""Waiting for a server."""

import pytest

from headwaiter_client import DeadlineExceeded, FakeEncoder, Unauthenticated, Unavailable
from headwaiter_client.transport.grpc_transport import Flight
from tests.client.drive import Drive, Recorder


def test_ready_is_when_the_server_takes_requests(drive: Drive) -> None:
    fake = _Starting()
    drive.call(fake, "wait_ready", timeout_s=30)
    assert [name for name, _ in fake.calls] == ["Check"] * 3


class _Starting(Recorder):
    """Cannot be reached at first, then is there but does not serve, then serves."""

    def unary(
        self, method: str, request: bytes, timeout_s: float, request_id: str | None = None, flight: Flight | None = None
    ) -> bytes:
        self.serving = len(self.calls) == 2
        if not self.calls:
            self.errors.append(Unavailable("connection refused"))
        return super().unary(method, request, timeout_s, request_id, flight)


@pytest.mark.parametrize(
    ("timeout_s", "why"), [(0.05, "it does not take requests"), (0, "the time was up before it was asked")]
)
def test_who_waits_for_a_server_learns_why_it_is_not_ready(drive: Drive, timeout_s: float, why: str) -> None:
    fake = FakeEncoder()
    fake.serving = False
    with pytest.raises(DeadlineExceeded, match=rf"^the server was not ready within {timeout_s:g} s: {why}$"):
        drive.call(fake, "wait_ready", timeout_s=timeout_s)


def test_a_server_that_does_not_answer_in_time_is_not_ready_and_that_is_said(drive: Drive) -> None:
    fake = FakeEncoder()
    fake.errors.extend([DeadlineExceeded("no answer within 5 s")] * 9)
    with pytest.raises(DeadlineExceeded, match=r"^the server was not ready within 0\.04 s: no answer within 5 s$"):
        drive.call(fake, "wait_ready", timeout_s=0.04)


def test_waiting_does_not_help_against_a_wrong_token(drive: Drive) -> None:
    fake = FakeEncoder()
    fake.errors.append(Unauthenticated("a wrong token"))
    with pytest.raises(Unauthenticated):
        drive.call(fake, "wait_ready")
