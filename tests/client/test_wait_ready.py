"""Waiting for a server to accept requests."""

from typing import Any

import pytest

from headwaiter_client import DeadlineExceeded, FakeEncoder, Unauthenticated, Unavailable
from tests.support.client.client_runner import ClientRunner, RecordingEncoder


def test_wait_ready_returns_when_the_server_serves(runner: ClientRunner) -> None:
    fake = _StartingEncoder()
    runner.call(fake, "wait_ready", timeout_s=30)
    assert [name for name, _ in fake.calls] == ["Check"] * 3


class _StartingEncoder(RecordingEncoder):
    """Is unreachable for the first call, does not serve for the second, serves from the third on."""

    def unary(self, *call: Any) -> bytes:
        self.serving = len(self.calls) == 2
        if not self.calls:
            self.errors.append(Unavailable("connection refused"))
        return super().unary(*call)


@pytest.mark.parametrize(("timeout_s", "reason"), [(0.05, "SERVING"), (1e-9, "no time")])
def test_the_error_says_how_long_the_client_waited_and_why_the_server_is_not_ready(
    runner: ClientRunner, timeout_s: float, reason: str
) -> None:
    fake = FakeEncoder()
    fake.serving = False
    with pytest.raises(DeadlineExceeded) as caught:
        runner.call(fake, "wait_ready", timeout_s=timeout_s)
    assert f"{timeout_s:g} s" in str(caught.value)
    assert reason in str(caught.value)


def test_the_error_shows_a_health_check_that_was_not_answered_in_time(runner: ClientRunner) -> None:
    fake = FakeEncoder()
    fake.errors.extend([DeadlineExceeded("no answer within 5 s")] * 9)
    with pytest.raises(DeadlineExceeded) as caught:
        runner.call(fake, "wait_ready", timeout_s=0.04)
    assert "0.04 s" in str(caught.value)
    assert "no answer within 5 s" in str(caught.value)


def test_a_wrong_token_ends_the_wait_at_once(runner: ClientRunner) -> None:
    fake = FakeEncoder()
    fake.errors.append(Unauthenticated("a wrong token"))
    with pytest.raises(Unauthenticated):
        runner.call(fake, "wait_ready")
