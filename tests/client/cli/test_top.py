"""The subcommand `top`, with a server that has nothing but a metrics page."""

import io
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer

import pytest
from rich.console import Console

from headwaiter_client.cli import main, top
from tests.support.client.metrics_pages import page

FIRST = {
    "process_start_time_seconds{process=engine}": 1.0,
    "inflight_requests": 3,
    "version_state{model=m,state=ready}": 1,
    "requests_total{model=m,code=OK}": 100,
}
SECOND = FIRST | {"requests_total{model=m,code=OK}": 400, "refused_total{reason=OVERLOADED}": 1}


class MetricsServer(TCPServer):
    """Answers with the texts of `pages`, one after another, and then with the last; status 500 for an empty one."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.pages = [page(FIRST), page(SECOND)]
        self.paths: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/metrics"


class _Handler(BaseHTTPRequestHandler):
    server: MetricsServer

    def do_GET(self) -> None:
        self.server.paths.append(self.path)
        pages = self.server.pages
        body = (pages.pop(0) if len(pages) > 1 else pages[0]).encode()
        self.send_response(200 if body else 500)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Write no log."""


@pytest.fixture
def server(starts_processes: None) -> Iterator[MetricsServer]:
    with MetricsServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run `top` on a terminal, press Ctrl-C after some intervals, and return what the terminal got."""

    def run(server: MetricsServer, intervals: int, width: int = 120) -> str:
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
        assert main(["top", "--metrics", server.url]) == 0
        return written.getvalue()

    return run


def shown(written: str) -> str:
    """Return what stays on the terminal after the live view."""
    _, _, after = written.rpartition("\x1b[?1049l")
    return re.sub(r"\x1b\[[0-9;]*m", "", after)


def test_without_a_terminal_one_plain_view_is_printed(
    server: MetricsServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", "--metrics", server.url, "--interval-s", "0.1"]) == 0
    output, error = capsys.readouterr()
    assert error == ""
    assert "\x1b" not in output
    assert "headwaiter 0.1.0" in output
    assert "3 requests in progress" in output
    assert "OVERLOADED" in output
    model, version, requests_per_s, *_ = output.splitlines()[-1].split()
    assert (model, version) == ("m", "1")
    # 300 requests in an interval of at least 0.1 s.
    assert 100 < float(requests_per_s.replace(",", "")) <= 3000


def test_the_terminal_shows_the_view_until_ctrl_c_and_keeps_the_last_one(
    server: MetricsServer, terminal: Callable[..., str]
) -> None:
    server.pages.append(page(SECOND | {"inflight_requests": 44}))
    written = terminal(server, intervals=2)
    live, _, _ = written.partition("\x1b[?1049l")
    assert "\x1b[?1049h" in live
    assert all(fact in live for fact in (server.url, "3 requests in progress", "44 requests in progress"))
    assert "44 requests in progress" in shown(written)
    assert "no answer" not in written


def test_ctrl_c_in_the_first_interval_ends_the_command(server: MetricsServer, terminal: Callable[..., str]) -> None:
    assert server.url in shown(terminal(server, intervals=0))


def test_the_view_says_since_when_the_server_does_not_answer_and_continues(
    server: MetricsServer, terminal: Callable[..., str]
) -> None:
    server.pages[2:] = ["", "", page(SECOND | {"inflight_requests": 44})]
    written = terminal(server, intervals=4)
    since = re.findall(r"no answer since (\d\d:\d\d:\d\d): .*status 500", written)
    assert len(since) == 2
    assert since[0] == since[1]
    assert "44 requests in progress" in shown(written)
    assert "no answer" not in shown(written)


def test_the_last_view_of_a_server_that_does_not_answer_says_so(
    server: MetricsServer, terminal: Callable[..., str]
) -> None:
    server.pages[2:] = [""]
    last = shown(terminal(server, intervals=2))
    assert "no answer since" in last
    assert "3 requests in progress" in last


@pytest.mark.parametrize(("pages", "reason"), [([""], "status 500"), (["up 1\n"], "Headwaiter")])
def test_the_first_reading_must_succeed(
    server: MetricsServer, pages: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server.pages = pages
    assert main(["top", "--metrics", server.url]) == 1
    error = capsys.readouterr().err
    assert error.startswith("headwaiter-client: ")
    assert all(part in error for part in (server.url, reason, "--metrics"))
    assert error.count("\n") == 1


@pytest.mark.usefixtures("starts_processes")
def test_another_server_writes_no_commands_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"\x1b]0;title\x07\x1b[31mred\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        assert main(["top", "--metrics", f"http://127.0.0.1:{listening.getsockname()[1]}"]) == 1
    error = capsys.readouterr().err
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
    line: str, code: int, server: MetricsServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.pages = [f'headwaiter_build_info{{version="1"}} 1\n{line}\n'] * 2
    assert main(["top", "--metrics", server.url, "--interval-s", "0.01"]) == code
    output, error = capsys.readouterr()
    assert ("headwaiter 1" in output) == (not code)
    assert error.count("\n") == code


def test_a_page_without_end_is_an_error(
    server: MetricsServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(top, "_MAX_PAGE_BYTES", 1 << 20)
    server.pages = ["#" * (1 << 20), "#" * ((1 << 20) + 1)]
    for reason in ("Headwaiter", "1 MiB"):
        assert main(["top", "--metrics", server.url]) == 1
        assert reason in capsys.readouterr().err


@pytest.mark.usefixtures("starts_processes")
def test_a_server_that_cannot_be_reached_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with MetricsServer() as closed:
        url = closed.url
    assert main(["top", "--metrics", url]) == 1
    assert "Connection refused" in capsys.readouterr().err


def test_without_a_terminal_a_server_that_stops_is_an_error(
    server: MetricsServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.pages[1] = ""
    assert main(["top", "--metrics", server.url, "--interval-s", "0.01"]) == 1
    assert "status 500" in capsys.readouterr().err


@pytest.mark.parametrize("path", ["", "/", "/metrics", "/behind/a/proxy?server=1"])
def test_a_url_without_a_path_gets_that_of_the_metrics(
    server: MetricsServer, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAITER_CLIENT_METRICS", server.url.removesuffix("/metrics") + path)
    assert main(["top", "--interval-s", "0.01"]) == 0
    assert set(server.paths) == {path if len(path) > 1 else "/metrics"}


@pytest.mark.parametrize("url", ["localhost:9464", "file:///etc/passwd", "http://", "http://[::1"])
def test_a_wrong_url_is_wrong_usage(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["top", "--metrics", url])
    assert ended.value.code == 2
    assert repr(url) in capsys.readouterr().err


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
    lines = shown(terminal(busy, intervals=1, width=width)).splitlines()
    assert max(map(len, lines)) <= width
    headings = set(" ".join(lines[-5:-3]).split())
    assert has <= headings
    assert not lacks & headings
    names = [line.split()[0] for line in lines[-3:]]
    assert names[1].startswith("a-very-")
    assert names[1].endswith("…")
    assert names[2] == "other"


def test_all_columns_and_names_are_there_without_a_terminal(
    busy: MetricsServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", "--metrics", busy.url, "--interval-s", "0.01"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith(f"errors/s of {LONG} 1: ") and line.endswith(" RESOURCE_EXHAUSTED") for line in lines)
    assert any(re.fullmatch(r"errors/s without a model: \S+ DEADLINE_EXCEEDED", line) for line in lines)
    assert "GPU 0: 20.0 of 80.0 GiB of memory in use" in lines
    assert any(line.startswith("device 1: ") and LONG in line for line in lines)
    assert any("8 front ends, 12,345 requests in progress" in line for line in lines)
    assert any(line.endswith("versions: 2 ready, 1 failed") for line in lines)
    *_, numbers = re.split(r"other 12 failed +", lines[-1])
    assert numbers.replace(" ms", "ms").split() == ["0", "0", *"----", "0", "0", "0ms", "0", *"---", "0%"]


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (0.04, "0"),
        (3, "3"),
        (9.96, "10"),
        (3.14, "3.1"),
        (1234.5, "1,234"),
        (12_345, "12k"),
        (1.26e6, "1.3M"),
    ],
)
def test_numbers_are_short(number: float, text: str) -> None:
    assert top._number(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "0 ms"), (0.00123, "1.2 ms"), (0.01, "10 ms"), (0.9996, "1.0 s"), (70.0, "70.0 s")]
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert top._duration(seconds) == text


def test_the_command_says_how_to_install_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(SystemExit, match=r"prometheus-client.*pip install"):
        main(["top"])
