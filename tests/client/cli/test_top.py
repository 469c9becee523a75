"""The subcommand `top`, with metrics pages that a test makes up."""

import io
import re
import socket
import sys
import threading
import time
from collections.abc import Callable
from email.message import Message
from urllib.error import HTTPError

import pytest
from rich.console import Console

from headwaiter_client.cli import main, top
from tests.client.cli.conftest import Command
from tests.support.client.metrics_pages import page

URL = "http://localhost:9464/metrics"
FIRST = {
    "process_start_time_seconds{process=engine}": 1.0,
    "inflight_requests": 3,
    "version_state{model=m,state=ready}": 1,
    "requests_total{model=m,code=OK}": 100,
}
SECOND = FIRST | {"requests_total{model=m,code=OK}": 400, "refused_total{reason=OVERLOADED}": 1}


class MetricsServer:
    """Answers with the texts of `pages`, one after another, and then with the last; status 500 for an empty one."""

    def __init__(self) -> None:
        self.pages = [page(FIRST), page(SECOND)]
        self.urls: list[str] = []

    def open(self, url: str, *, timeout: float) -> io.BytesIO:
        self.urls.append(url)
        body = self.pages.pop(0) if len(self.pages) > 1 else self.pages[0]
        if not body:
            raise HTTPError(url, 500, "a fault", Message(), None)
        return io.BytesIO(body.encode())


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> MetricsServer:
    server = MetricsServer()
    monkeypatch.setattr(top, "urlopen", server.open)
    return server


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run `top` on a terminal, press Ctrl-C after some intervals, and return what the terminal got."""

    def run(intervals: int, width: int = 120) -> str:
        written = io.StringIO()
        screen = Console(
            file=written, force_terminal=True, width=width, height=30, markup=False, emoji=False, highlight=False
        )
        left = iter(range(intervals))

        def sleep(seconds: float) -> None:
            if next(left, None) is None:
                raise KeyboardInterrupt

        monkeypatch.setattr(top, "console", lambda: screen)
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setattr(time, "sleep", sleep)
        assert main(["top"]) == 0
        return written.getvalue()

    return run


def shown(written: str) -> str:
    """Return what stays on the terminal after the live view."""
    _, _, after = written.rpartition("\x1b[?1049l")
    return re.sub(r"\x1b\[[0-9;]*m", "", after)


def test_without_a_terminal_one_plain_view_is_printed(server: MetricsServer, command: Command) -> None:
    assert command.run("top", "--interval-s", "0.1") == 0
    assert command.error == ""
    assert "\x1b" not in command.printed
    for fact in ("headwaiter 0.1.0", "3 requests in progress", "OVERLOADED"):
        assert fact in command.printed
    model, version, requests_per_s, *_ = command.printed.splitlines()[-1].split()
    assert (model, version) == ("m", "1")
    # 300 requests in an interval of at least 0.1 s.
    assert 100 < float(requests_per_s.replace(",", "")) <= 3000


def test_the_terminal_shows_the_view_until_ctrl_c_and_keeps_the_last_one(
    server: MetricsServer, terminal: Callable[..., str]
) -> None:
    server.pages.append(page(SECOND | {"inflight_requests": 44}))
    written = terminal(intervals=2)
    live, _, _ = written.partition("\x1b[?1049l")
    assert "\x1b[?1049h" in live
    assert all(fact in live for fact in (URL, "3 requests in progress", "44 requests in progress"))
    assert "44 requests in progress" in shown(written)
    assert "no answer" not in written


@pytest.mark.usefixtures("server")
def test_ctrl_c_in_the_first_interval_ends_the_command(terminal: Callable[..., str]) -> None:
    assert URL in shown(terminal(intervals=0))


def test_the_view_says_since_when_the_server_does_not_answer_and_continues(
    server: MetricsServer, terminal: Callable[..., str]
) -> None:
    server.pages[2:] = ["", "", page(SECOND | {"inflight_requests": 44})]
    written = terminal(intervals=4)
    since = re.findall(r"no answer since (\d\d:\d\d:\d\d): .*status 500", written)
    assert len(since) == 2
    assert since[0] == since[1]
    assert "44 requests in progress" in shown(written)
    assert "no answer" not in shown(written)


def test_the_last_view_of_a_server_that_does_not_answer_says_so(
    server: MetricsServer, terminal: Callable[..., str]
) -> None:
    server.pages[2:] = [""]
    last = shown(terminal(intervals=2))
    assert "no answer since" in last
    assert "3 requests in progress" in last


@pytest.mark.parametrize(
    ("pages", "reason"),
    [
        ([""], "status 500"),
        (["up 1\n"], "Headwaiter"),
        (["#" * (1 << 20)], "Headwaiter"),
        (["#" * ((1 << 20) + 1)], "1 MiB"),
        ([page(FIRST), ""], "status 500"),
    ],
)
def test_without_a_terminal_a_page_that_cannot_be_read_is_an_error(
    server: MetricsServer, pages: list[str], reason: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(top, "_MAX_PAGE_BYTES", 1 << 20)
    server.pages = pages
    error = command.refusal("top", "--interval-s", "0.01")
    assert all(part in error for part in (URL, reason, "--metrics"))


@pytest.mark.usefixtures("starts_processes")
def test_another_server_writes_no_commands_to_the_terminal(command: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"\x1b]0;title\x07\x1b[31mred\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        error = command.refusal("top", "--metrics", f"http://127.0.0.1:{listening.getsockname()[1]}")
    assert "red" in error
    assert not set(error) & {"\x1b", "\x07"}


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ('headwaiter_gpu_memory_used_bytes{gpu="0"} 5', 0),
        ("headwaiter_front_ends +Inf", 0),
        ('process_start_time_seconds{process="engine"} -Inf', 0),
        ("headwaiter_inflight_requests NaN", 0),
        (
            'headwaiter_request_duration_seconds_bucket{model="m",version="1",method="Encode",le="x"} 1\n'
            'headwaiter_version_state{model="m",version="1",state="ready"} 1',
            1,
        ),
    ],
)
def test_a_page_that_no_server_writes_ends_without_a_traceback(
    line: str, code: int, server: MetricsServer, command: Command
) -> None:
    server.pages = [f'headwaiter_build_info{{version="1"}} 1\n{line}\n'] * 2
    assert command.run("top", "--interval-s", "0.01") == code
    assert ("headwaiter 1" in command.printed) == (not code)
    assert command.error.count("\n") == code


def test_a_server_that_cannot_be_reached_is_an_error(command: Command) -> None:
    assert "Connection refused" in command.refusal("top", "--metrics", "http://localhost:1")


@pytest.mark.parametrize("path", ["", "/", "/metrics", "/behind/a/proxy?server=1"])
def test_a_url_without_a_path_gets_that_of_the_metrics(
    server: MetricsServer, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAITER_CLIENT_METRICS", f"https://host:1{path}")
    assert main(["top", "--interval-s", "0.01"]) == 0
    assert set(server.urls) == {f"https://host:1{path if len(path) > 1 else '/metrics'}"}


LONG = "a-very-long-name-of-a-model-[bold]-that-must-be-cut"


@pytest.fixture
def busy(server: MetricsServer) -> MetricsServer:
    """A server with much to show: three versions of models, errors, refusals, two devices and a GPU."""
    ready = {f"version_state{{model={model},state=ready}}": 1 for model in (LONG, "all-MiniLM-L6-v2")}
    ready["version_state{model=other,version=12,state=failed}"] = 1
    now: dict[str, float] = {"front_ends": 8, "inflight_requests": 12345}
    now["requests_total{model=,version=,code=DEADLINE_EXCEEDED}"] = 364
    now |= {"gpu_memory_used_bytes{gpu=0}": 20 * 2**30, "gpu_memory_total_bytes{gpu=0}": 80 * 2**30}
    for model, number in ((LONG, 123456), ("all-MiniLM-L6-v2", 1234567)):
        labels = f"model={model}"
        now |= {f"requests_total{{{labels},code={code}}}": number for code in ("OK", "RESOURCE_EXHAUSTED")}
        for bound, count in (("0.1", 1), ("20.0", number), ("+Inf", number)):
            now[f"request_duration_seconds_bucket{{{labels},method=Encode,le={bound}}}"] = count
        now |= {f"stage_duration_seconds_sum{{{labels},stage={stage}}}": number for stage in ("queue", "compute")}
        now |= {f"{name}{{{labels}}}": 123456 for name in ("queue_sequences", "queue_tokens")}
        now |= {f"batch_{name}_sum{{{labels}}}": number * 16 for name in ("sequences", "tokens", "padding_ratio")}
        now |= {f"batch_tokens_count{{{labels}}}": number // 16, f"estimated_wait_seconds{{{labels}}}": 12.5}
        now |= {f"device_busy_seconds_total{{{labels},device={device}}}": number / 1e6 for device in (0, 1)}
    server.pages = [page(ready), page(ready | now)]
    return server


@pytest.mark.parametrize(
    ("width", "has", "lacks"),
    [
        (40, {"requests", "p50"}, {"queue", "queued", "padding"}),
        (80, {"requests", "errors", "p50", "p99", "queue", "queued", "wait", "device"}, {"padding"}),
        (120, {"requests", "errors", "p50", "p99", "queue", "compute", "queued", "wait", "batch", "device"}, set()),
    ],
)
def test_the_view_fits_the_terminal(
    busy: MetricsServer, terminal: Callable[..., str], width: int, has: set[str], lacks: set[str]
) -> None:
    lines = shown(terminal(intervals=1, width=width)).splitlines()
    assert max(map(len, lines)) <= width
    headings = set(" ".join(lines[-5:-3]).split())
    assert has <= headings
    assert not lacks & headings
    names = [line.split()[0] for line in lines[-3:]]
    assert names[1].startswith("a-very-")
    assert names[1].endswith("…")
    assert names[2] == "other"


def test_all_columns_and_names_are_there_without_a_terminal(busy: MetricsServer, command: Command) -> None:
    assert command.run("top", "--interval-s", "0.01") == 0
    lines = command.printed.splitlines()
    assert any(line.startswith(f"errors/s of {LONG} 1: ") and line.endswith(" RESOURCE_EXHAUSTED") for line in lines)
    assert any(re.fullmatch(r"errors/s without a model: \S+ DEADLINE_EXCEEDED", line) for line in lines)
    assert "GPU 0: 20.0 of 80.0 GiB of memory in use" in lines
    assert any(line.startswith("device 1: ") and LONG in line for line in lines)
    assert any("8 front ends, 12,345 requests in progress" in line for line in lines)
    assert any(line.endswith("versions: 2 ready, 1 failed") for line in lines)
    *_, numbers = re.split(r"other 12 failed +", lines[-1])
    assert numbers.replace(" ms", "ms").split() == ["0", "0", *"----", "0", "0", "0ms", "0", *"---", "0%"]


@pytest.mark.parametrize(
    ("function", "number", "text"),
    [
        (top._number, 0, "0"),
        (top._number, 0.04, "0"),
        (top._number, 3, "3"),
        (top._number, 9.96, "10"),
        (top._number, 3.14, "3.1"),
        (top._number, 1234.5, "1,234"),
        (top._number, 12_345, "12k"),
        (top._number, 1.26e6, "1.3M"),
        (top._duration, 0.0, "0 ms"),
        (top._duration, 0.00123, "1.2 ms"),
        (top._duration, 0.01, "10 ms"),
        (top._duration, 0.9996, "1.0 s"),
        (top._duration, 70.0, "70.0 s"),
    ],
)
def test_numbers_and_durations_are_short(function: Callable[[float], str], number: float, text: str) -> None:
    assert function(number) == text


def test_the_command_says_how_to_install_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(SystemExit, match=r"prometheus-client.*pip install"):
        main(["top"])
