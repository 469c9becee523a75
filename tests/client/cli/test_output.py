"""The promises of docs/reference/commands.md about the output of `encode`: files, disks, locks, processes, signals."""

import errno
import fcntl
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc
import numpy as np
import pytest

from headwaiter_proto import encoder_pb2 as pb
from tests.client.cli.conftest import Command, EncodeJob
from tests.support.client.fake_server import FakeServer

HEADER_BYTES = 128
MANY = 331


# -- What is written where


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_what_is_no_regular_file_is_refused_and_stays(job: EncodeJob, make: Callable[[Path], None]) -> None:
    target, link = job.out, job.out.with_name("link")
    make(target)
    link.symlink_to(target)
    before = target.stat()
    for out in (target, link):
        job.out = out
        assert job.refusal("--overwrite").startswith(f"{out} is not a regular file")
        assert os.path.samestat(before, out.stat())
    assert job.fake.requests == []
    assert job.files == ["out.npy"]


def test_an_output_in_no_folder_is_refused_before_the_work(job: EncodeJob) -> None:
    job.out = job.out.with_name("missing") / "out.npy"
    assert f"the folder {job.out.parent} does not exist" in job.refusal()
    assert job.fake.requests == []


@pytest.mark.parametrize("exists", [True, False])
def test_a_symbolic_link_stays_and_its_target_is_written(job: EncodeJob, *, exists: bool) -> None:
    link, target = job.out.with_name("link.npy"), job.out.with_name("folder") / "out.npy"
    target.parent.mkdir()
    if exists:
        target.write_text("old")
    link.symlink_to(Path("folder", "out.npy"))
    job.out = link
    job.interrupt("--overwrite")
    job.out = target
    assert job.files == [*(["out.npy"] if exists else []), *job.work_files]
    job.out = link
    assert job.run("--overwrite") == 0
    assert link.readlink() == Path("folder", "out.npy")
    assert list(link.parent.glob("link*")) == [link]
    job.out = target
    job.check_output()


def test_a_circle_of_links_is_an_error(job: EncodeJob) -> None:
    job.out.symlink_to(job.out)
    assert job.refusal().startswith(f"{job.out}: ")


@pytest.mark.parametrize("suffix", ["partial", "journal"])
def test_a_link_or_a_pipe_in_place_of_a_work_file_is_refused(job: EncodeJob, suffix: str) -> None:
    victim, planted = job.out.with_name("victim"), job.out.with_name(f"out.npy.{suffix}")
    victim.write_text("precious")
    planted.symlink_to(victim)
    assert job.refusal().startswith(str(planted))
    planted.unlink()
    os.mkfifo(planted)
    assert job.refusal().startswith(str(planted))
    assert victim.read_text() == "precious"


def test_an_existing_output_is_replaced_only_with_overwrite(job: EncodeJob) -> None:
    job.out.write_text("old")
    error = job.refusal()
    assert error.startswith(f"{job.out} already exists: ")
    assert "--overwrite" in error
    assert job.fake.requests == []
    # The old output stays until the new one is complete.
    job.interrupt("--overwrite")
    assert job.out.read_text() == "old"
    assert job.run() == 1
    assert job.run("--overwrite") == 0
    assert job.fake.texts == ["text 4", "text 5"]
    job.check_output()


def test_an_output_that_appears_during_the_run_is_not_replaced(job: EncodeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda _: job.out.write_text("of another program"))
    assert f"{job.out} already exists" in job.refusal()
    assert job.out.read_text() == "of another program"


def test_the_file_of_texts_is_not_replaced(job: EncodeJob) -> None:
    job.out, before = job.texts, job.texts.read_bytes()
    assert f"{job.texts} is also the file of texts" in job.refusal("--overwrite")
    assert (job.texts.read_bytes(), job.fake.requests) == (before, [])


def test_a_private_output_stays_private(job: EncodeJob) -> None:
    job.out.touch(0o600)
    assert job.run("--overwrite") == 0
    assert job.out.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "content", [b"my notes\n", b"\nmy notes", b"no line feed", b"\x93NUMPY", b"[1]\n", b'{"mine": 1}\n']
)
@pytest.mark.parametrize("flags", [[], ["--restart", "--overwrite"]])
def test_a_journal_of_another_program_is_refused_and_stays(job: EncodeJob, content: bytes, flags: list[str]) -> None:
    job.journal.write_bytes(content)
    assert job.refusal(*flags).startswith(f"{job.journal} is not the journal of an encode run: ")
    assert job.journal.read_bytes() == content
    assert job.files == [job.journal.name]


# -- Two runs


def test_a_second_run_on_an_output_is_refused_until_the_first_has_ended(job: EncodeJob) -> None:
    out, link = job.out, job.out.with_name("link.npy")
    link.symlink_to(out)
    with job.journal.open("w") as journal:
        fcntl.flock(journal, fcntl.LOCK_SH)  # Only an exclusive lock is refused.
        for name in (out, link):
            job.out = name
            for flags in ([], ["--restart"], ["--overwrite"]):
                assert job.refusal(*flags).startswith(f"another run is writing {name}: ")
        assert job.fake.requests == []
        job.out = out.with_name("another.npy")
        assert job.run() == 0
    job.out = out
    assert job.run() == 0
    job.check_output()


class StallingServer(FakeServer):
    """Answers requests of two texts, and keeps the request with "text 4" until `goes_on` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.description.limits.max_sequences = 2
        self.goes_on = threading.Event()

    def Encode(self, request: pb.EncodeRequest, context: grpc.ServicerContext) -> pb.EncodeResponse:  # noqa: N802
        if "text 4" in request.texts.values:
            self.goes_on.wait()
        return super().Encode(request, context)


@pytest.fixture
def stalling_server(starts_processes: None) -> Iterator[StallingServer]:
    server = StallingServer()
    yield server
    server.goes_on.set()
    server.stop()


@contextmanager
def started(*arguments: object) -> "Iterator[subprocess.Popen[bytes]]":
    """Start the command in a process, and kill the process at the end."""
    program = "import sys; from headwaiter_client.cli import main; sys.exit(main())"
    with subprocess.Popen([sys.executable, "-c", program, *map(str, arguments)], stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def written_rows(out: Path) -> int:
    """Return the number of rows that a run has written; the vectors of the fake server have three numbers."""
    return (out.with_name(f"{out.name}.partial").stat().st_size - HEADER_BYTES) // 12


def wait_for_rows(out: Path, rows: int) -> None:
    """Wait until a run has written some of its rows, or has ended."""
    while not out.exists():
        with suppress(FileNotFoundError):
            if written_rows(out) >= rows:
                return
        time.sleep(0.02)


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_lock_and_no_row_go_with_a_process_that_is_killed(
    stalling_server: StallingServer, six_texts: Path, tmp_path: Path, command: Command, signal_number: signal.Signals
) -> None:
    server, out = stalling_server, tmp_path / "out.npy"
    encode = ("encode", six_texts, "-o", out, "--address", server.address)
    with started(*encode) as killed:
        wait_for_rows(out, 4)
        assert "another run" in command.refusal(*encode)
        killed.send_signal(signal_number)
        killed.wait()
    assert {path.name for path in tmp_path.glob("out*")} == {"out.npy.journal", "out.npy.partial"}
    server.goes_on.set()
    server.requests.clear()
    assert command.run(*encode) == 0
    # The server records the request of the killed process only now.
    encoded = [request for request in server.requests if isinstance(request, pb.EncodeRequest)]
    assert {tuple(request.texts.values) for request in encoded} == {("text 4", "text 5")}
    assert np.load(out).tolist() == [[number % 2 / 2] * 3 for number in range(6)]
    assert list(tmp_path.glob("out*")) == [out]


@pytest.mark.exhaustive
def test_a_run_that_is_killed_at_any_time_is_resumed_without_a_gap(server: FakeServer, tmp_path: Path) -> None:
    server.description.limits.max_sequences = 2
    texts, out = tmp_path / "texts", tmp_path / "out.npy"
    texts.write_text("".join(f"text {number}\n" for number in range(3_000)))
    random = np.random.default_rng(0)
    killed = rows = 0
    while not out.exists():
        with started("encode", texts, "-o", out, "--address", server.address) as process:
            wait_for_rows(out, rows + 1)
            if out.exists():
                assert process.wait() == 0
            time.sleep(random.uniform(0, 0.2))
        if not out.exists():
            killed += 1
            rows = written_rows(out)
    assert killed > 3
    if process.returncode:
        # The last kill came between the name of the complete file and the end of its journal.
        (tmp_path / "out.npy.journal").unlink(missing_ok=True)
    # The server answers a text with half of its place in the request. After a kill, a request may begin with any row.
    answers: dict[str, set[float]] = {}
    for request in server.requests:
        if isinstance(request, pb.EncodeRequest):
            for place, text in enumerate(request.texts.values):
                answers.setdefault(text, set()).add(place / 2)
    written = np.load(out)[:, 0].tolist()
    assert len(written) == 3_000
    assert all(row in answers[f"text {number}"] for number, row in enumerate(written))
    assert sum(len(values) == 1 for values in answers.values()) > 2_900
    assert list(tmp_path.glob("out*")) == [out]


def test_a_run_that_opens_the_journal_of_a_run_that_just_ends_takes_a_new_journal(
    job: EncodeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, left = fcntl.flock, [False, True]

    def end_other_run_first(file: int, operation: int) -> None:
        flock(file, operation)
        if left:
            job.journal.rename(job.out.with_name("other"))
            if left.pop():  # A third run has begun and ended well.
                job.journal.touch()

    monkeypatch.setattr("fcntl.flock", end_other_run_first)
    job.interrupt()
    assert job.journal.stat().st_size > 4 * 16


def test_a_file_system_without_locks_is_an_error(job: EncodeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    assert job.refusal() == f"{job.journal}: No locks available"


def test_a_system_without_flock_is_named(job: EncodeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with pytest.raises(SystemExit, match="Linux or macOS"):
        job.run()


# -- Disks


# A row of three numbers has 12 bytes and a row of the journal 16, so the journal is the larger file with three
# dimensions, and the smaller one with eight.
@pytest.mark.parametrize(
    ("dimensions", "limit_bytes", "short", "kept_rows"),
    [
        pytest.param(8, HEADER_BYTES + MANY * 32 - 1, "partial", MANY - 1, id="in the last row"),
        pytest.param(8, HEADER_BYTES + 150 * 32, "partial", 150, id="between rows"),
        pytest.param(3, HEADER_BYTES + MANY * 12, "journal", None, id="in the journal"),
        pytest.param(8, 100, "journal", 0, id="in the first line of the journal"),
    ],
)
def test_a_file_that_may_not_grow_is_an_error_and_the_same_command_resumes(
    job: EncodeJob, dimensions: int, limit_bytes: int, short: str, kept_rows: int | None
) -> None:
    job.texts.write_text("".join(f"text {number}\n" for number in range(MANY)))
    flags = ("--dimensions", dimensions)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limits[1]))  # Python ignores SIGXFSZ.
    try:
        error = job.refusal(*flags)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert error.startswith(f"{job.out}.{short}: File too large")
    assert ("the same command" in error) == (kept_rows != 0)
    assert job.files == ([] if kept_rows == 0 else job.work_files)

    job.fake.requests.clear()
    assert job.run(*flags) == 0
    job.check_output(dimensions=dimensions)
    if kept_rows is not None:
        assert len(job.fake.texts) == MANY - kept_rows
    else:
        assert 0 < len(job.fake.texts) < MANY


def test_the_output_takes_its_place_only_after_the_disk_has_stored_it(
    job: EncodeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync, stored = os.fsync, []

    def observe(descriptor: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        assert os.path.samestat(os.fstat(descriptor), (job.out.parent if is_folder else job.partial).stat())
        stored.append(("folder" if is_folder else "file", job.out.exists()))
        fsync(descriptor)

    monkeypatch.setattr("os.fsync", observe)
    assert job.run() == 0
    assert stored == [("file", False), ("folder", True)]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_disk_that_does_not_store_the_output_is_an_error(
    job: EncodeJob, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def refuse(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode) == (kind == "folder"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", refuse)
        error = job.refusal()
    assert error.startswith(f"{job.partial if kind == 'file' else job.out.parent}: No space left on device")
    assert ("the same command" in error) == (kind == "file")
    if kind == "file":
        assert job.files == job.work_files
        job.fake.requests.clear()
        assert job.run() == 0
        assert job.fake.texts == []
    job.check_output()


def test_a_row_that_the_disk_lost_is_encoded_again(job: EncodeJob) -> None:
    job.interrupt()
    content = bytearray(job.partial.read_bytes())
    content[HEADER_BYTES + 2 * 32 : HEADER_BYTES + 3 * 32] = bytes(32)
    job.partial.write_bytes(content)
    assert job.run() == 0
    assert job.fake.texts == [f"text {number}" for number in range(2, 6)]
    job.check_output()
