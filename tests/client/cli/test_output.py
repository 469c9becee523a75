"""The promises of docs/reference/commands.md about the output of `encode`: files, disks, locks, processes, signals."""

import errno
import fcntl
import os
import resource
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc
import numpy as np
import pytest

from headwaiter_client import Client, FakeEncoder
from headwaiter_client.cli import main
from headwaiter_proto import encoder_pb2 as pb
from tests.client.cli.conftest import ReusableFake
from tests.support.client.fake_server import FakeServer

COMMAND = [sys.executable, "-c", "import sys; from headwaiter_client.cli import main; sys.exit(main())", "encode"]
HEADER_BYTES, ROW_BYTES = 128, 12  # The vectors of the fake server have three numbers.
PAGE_BYTES = 4096
# With rows of 12 bytes, the first page of the file of vectors holds the header, 330 rows, and 8 bytes of the last row.
MANY = 331


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

    def stop(self) -> None:
        self.goes_on.set()
        super().stop()


@pytest.fixture
def stalling_server(starts_processes: None) -> Iterator[StallingServer]:
    server = StallingServer()
    yield server
    server.stop()


@contextmanager
def started(server: FakeServer, texts: Path, out: Path, *flags: str) -> "Iterator[subprocess.Popen[str]]":
    """Start `encode` in a process, and kill the process at the end."""
    command = [*COMMAND, str(texts), "-o", str(out), "--address", server.address, *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with process:
        try:
            yield process
        finally:
            process.kill()


def wait_for_rows(out: Path, rows: int) -> None:
    """Wait until a run has written some of its rows, or has ended."""
    partial = out.with_name(f"{out.name}.partial")
    while not out.exists():
        with suppress(FileNotFoundError):
            if partial.stat().st_size >= HEADER_BYTES + rows * ROW_BYTES:
                return
        time.sleep(0.02)


def files(out: Path) -> list[str]:
    return sorted(path.name for path in out.parent.glob("out*"))


def expected(texts: Path, dimensions: int | None = None) -> object:
    return Client(transport=FakeEncoder()).encode(texts.read_text().splitlines(), dimensions=dimensions).pooled


# -- What is written where


@pytest.mark.parametrize("kind", ["folder", "pipe", "socket", "device"])
def test_what_is_no_regular_file_is_refused_and_stays(
    fake: ReusableFake, six_texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    out = tmp_path / "out"
    with socket.socket(socket.AF_UNIX) as listener:
        if kind == "folder":
            out.mkdir()
        elif kind == "pipe":
            os.mkfifo(out)
        elif kind == "socket":
            listener.bind(str(out))
        else:
            try:
                os.mknod(out, stat.S_IFCHR | 0o666, os.makedev(1, 3))
            except PermissionError:
                out = Path(os.devnull)  # Only root could destroy it.
        before = out.stat()
        for link in (out, tmp_path / "link"):
            if link != out:
                link.symlink_to(out)
            assert main(["encode", str(six_texts), "-o", str(link), "--overwrite"]) == 1
            error = capsys.readouterr().err
            assert error.startswith(f"headwaiter-client: {link} is not a regular file")
            assert error.count("\n") == 1
        assert os.path.samestat(before, out.stat())
        assert stat.S_IFMT(before.st_mode) == stat.S_IFMT(out.stat().st_mode)
    assert fake.requests == []
    assert not [*tmp_path.glob("*.journal"), *out.parent.glob(f"{out.name}.*")]


def test_a_pipe_to_another_program_is_refused(server: FakeServer, six_texts: Path, tmp_path: Path) -> None:
    stdout = tmp_path / "stdout"
    stdout.symlink_to("/proc/self/fd/1")  # As /dev/stdout, which a mistake of the command would destroy for root.
    with started(server, six_texts, stdout, "--overwrite") as process:
        assert f"{stdout} is not a regular file" in process.communicate()[1]
    assert process.returncode == 1


@pytest.mark.parametrize("exists", [True, False])
def test_a_symbolic_link_stays_and_its_target_is_written(
    fake: ReusableFake, six_texts: Path, tmp_path: Path, *, exists: bool
) -> None:
    link, target = tmp_path / "link.npy", tmp_path / "folder" / "out.npy"
    target.parent.mkdir()
    if exists:
        target.write_text("old")
    link.symlink_to(Path("folder", "out.npy"))
    command = ["encode", str(six_texts), "-o", str(link)]
    fake.errors_by_text["text 4"] = KeyboardInterrupt()
    assert main([*command, "--overwrite"]) == 130
    assert files(target) == [*(["out.npy"] if exists else []), "out.npy.journal", "out.npy.partial"]
    fake.errors_by_text.clear()
    assert main([*command, "--overwrite"]) == 0
    assert link.readlink() == Path("folder", "out.npy")
    np.testing.assert_array_equal(np.load(target), expected(six_texts))
    assert files(target) == ["out.npy"]
    assert list(tmp_path.glob("link*")) == [link]


def test_a_circle_of_links_is_an_error(
    fake: ReusableFake, six_texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").symlink_to("out")
    assert main(["encode", str(six_texts), "-o", str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err.startswith(f"headwaiter-client: {tmp_path / 'out'}: ")


@pytest.mark.parametrize("suffix", ["partial", "journal"])
def test_a_link_or_a_pipe_in_place_of_a_work_file_is_refused(
    fake: ReusableFake, six_texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str
) -> None:
    victim, planted = tmp_path / "victim", tmp_path / f"out.npy.{suffix}"
    victim.write_text("precious")
    planted.symlink_to(victim)
    command = ["encode", str(six_texts), "-o", str(tmp_path / "out.npy")]
    assert main(command) == 1
    planted.unlink()
    os.mkfifo(planted)
    assert main(command) == 1
    for line in capsys.readouterr().err.splitlines():
        assert line.startswith(f"headwaiter-client: {planted}")
    assert victim.read_text() == "precious"


def test_an_existing_output_is_replaced_only_with_overwrite(
    fake: ReusableFake, six_texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.npy"
    out.write_text("old")
    command = ["encode", str(six_texts), "-o", str(out)]
    assert main(command) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"headwaiter-client: {out} already exists: ")
    assert "--overwrite" in error
    assert fake.requests == []
    # The old output stays until the new one is complete.
    fake.errors_by_text["text 4"] = KeyboardInterrupt()
    assert main([*command, "--overwrite"]) == 130
    assert out.read_text() == "old"
    assert main(command) == 1
    fake.errors_by_text.clear()
    fake.requests.clear()
    assert main([*command, "--overwrite"]) == 0
    assert fake.texts == ["text 4", "text 5"]
    np.testing.assert_array_equal(np.load(out), expected(six_texts))


def test_an_output_that_appears_during_the_run_is_not_replaced(
    fake: ReusableFake,
    six_texts: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "out.npy"
    fsync = os.fsync

    def another_program_writes(descriptor: int) -> None:
        fsync(descriptor)
        out.write_text("of another program")

    monkeypatch.setattr("os.fsync", another_program_writes)
    command = ["encode", str(six_texts), "-o", str(out)]
    assert main(command) == 1
    assert f"{out} already exists" in capsys.readouterr().err
    assert out.read_text() == "of another program"
    monkeypatch.undo()
    out.unlink()


def test_the_file_of_texts_is_not_replaced(
    fake: ReusableFake, six_texts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = six_texts.read_bytes()
    assert main(["encode", str(six_texts), "-o", str(six_texts), "--overwrite"]) == 1
    assert f"{six_texts} is also the file of texts" in capsys.readouterr().err
    assert (six_texts.read_bytes(), fake.requests) == (before, [])


def test_a_private_output_stays_private(fake: ReusableFake, six_texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.npy"
    out.touch(0o600)
    assert main(["encode", str(six_texts), "-o", str(out), "--overwrite"]) == 0
    assert out.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "content", [b"my notes\n", b"\nmy notes", b"no line feed", b"\x93NUMPY", b"[1]\n", b'{"mine": 1}\n']
)
@pytest.mark.parametrize("flags", [[], ["--restart", "--overwrite"]])
def test_a_journal_of_another_program_is_refused_and_stays(
    fake: ReusableFake,
    six_texts: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    content: bytes,
    flags: list[str],
) -> None:
    journal = tmp_path / "out.npy.journal"
    journal.write_bytes(content)
    assert main(["encode", str(six_texts), "-o", str(tmp_path / "out.npy"), *flags]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"headwaiter-client: {journal} is not the journal of an encode run: ")
    assert journal.read_bytes() == content
    assert files(tmp_path / "out.npy") == ["out.npy.journal"]


# -- Two runs


def test_a_second_run_on_an_output_is_refused_and_the_first_run_ends_well(
    stalling_server: StallingServer, six_texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, link = tmp_path / "out.npy", tmp_path / "link.npy"
    link.symlink_to(out)
    with started(stalling_server, six_texts, out) as first:
        wait_for_rows(out, 4)
        for name in (out, link):
            for flags in ([], ["--restart"], ["--overwrite"]):
                arguments = [str(six_texts), "-o", str(name), "--address", stalling_server.address, *flags]
                assert main(["encode", *arguments]) == 1
                assert capsys.readouterr().err == (
                    f"headwaiter-client: another run is writing {name}: wait until it ends, or name another file with "
                    "--output\n"
                )
        stalling_server.goes_on.set()
        assert first.wait() == 0
    assert np.load(out).tolist() == [[number % 2 / 2] * 3 for number in range(6)]
    assert files(out) == ["out.npy"]


def test_the_refusal_of_a_second_run_names_the_output(
    fake: ReusableFake, six_texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.npy"
    with (tmp_path / "out.npy.journal").open("w") as journal:
        fcntl.flock(journal, fcntl.LOCK_EX)
        assert main(["encode", str(six_texts), "-o", str(out)]) == 1
    assert capsys.readouterr().err.startswith(f"headwaiter-client: another run is writing {out}: ")
    assert fake.requests == []
    assert main(["encode", str(six_texts), "-o", str(out)]) == 0


def test_a_second_run_is_refused_even_if_the_first_still_waits_for_the_server(
    stalling_server: StallingServer, six_texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.npy"
    stalling_server.stop()
    with started(stalling_server, six_texts, out) as first:
        assert first.stderr is not None
        assert "waiting for the server" in first.stderr.readline()
        assert main(["encode", str(six_texts), "-o", str(out), "--address", stalling_server.address]) == 1
        assert "another run" in capsys.readouterr().err
        first.send_signal(signal.SIGINT)
        assert first.wait() == 130
    assert files(out) == []


def test_runs_on_different_outputs_of_a_folder_do_not_disturb_each_other(
    stalling_server: StallingServer, six_texts: Path, tmp_path: Path
) -> None:
    with started(stalling_server, six_texts, tmp_path / "out.npy"):
        wait_for_rows(tmp_path / "out.npy", 4)
        stalling_server.goes_on.set()
        command = ["encode", str(six_texts), "-o", str(tmp_path / "out2.npy")]
        assert main([*command, "--address", stalling_server.address]) == 0


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_lock_and_no_row_go_with_a_process_that_is_killed(
    stalling_server: StallingServer, six_texts: Path, tmp_path: Path, signal_number: signal.Signals
) -> None:
    out = tmp_path / "out.npy"
    with started(stalling_server, six_texts, out) as first:
        wait_for_rows(out, 4)
        first.send_signal(signal_number)
        first.wait()
    assert files(out) == ["out.npy.journal", "out.npy.partial"]
    stalling_server.goes_on.set()
    stalling_server.requests.clear()
    assert main(["encode", str(six_texts), "-o", str(out), "--address", stalling_server.address]) == 0
    # The server records the request of the killed process only now.
    encoded = [request for request in stalling_server.requests if isinstance(request, pb.EncodeRequest)]
    assert {tuple(request.texts.values) for request in encoded} == {("text 4", "text 5")}
    assert np.load(out).tolist() == [[number % 2 / 2] * 3 for number in range(6)]
    assert files(out) == ["out.npy"]


@pytest.mark.exhaustive
def test_a_run_that_is_killed_at_any_time_is_resumed_without_a_gap(server: FakeServer, tmp_path: Path) -> None:
    server.description.limits.max_sequences = 2
    texts, out = tmp_path / "texts", tmp_path / "out.npy"
    texts.write_text("".join(f"text {number}\n" for number in range(3_000)))
    random = np.random.default_rng(0)
    killed = rows = 0
    while not out.exists():
        with started(server, texts, out) as process:
            wait_for_rows(out, rows + 1)
            if out.exists():
                assert process.wait() == 0
            time.sleep(random.uniform(0, 0.2))
        if not out.exists():
            killed += 1
            rows = ((tmp_path / "out.npy.partial").stat().st_size - HEADER_BYTES) // ROW_BYTES
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
    assert files(out) == ["out.npy"]


def test_a_run_that_opens_the_journal_of_a_run_that_just_ends_takes_a_new_journal(
    fake: ReusableFake, six_texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.npy"
    journal = tmp_path / "out.npy.journal"
    flock, left = fcntl.flock, [False, True]

    def end_other_run_first(file: int, operation: int) -> None:
        flock(file, operation)
        if left:
            journal.rename(tmp_path / "other")
            if left.pop():  # A third run has begun and ended well.
                journal.touch()

    monkeypatch.setattr("fcntl.flock", end_other_run_first)
    fake.errors_by_text["text 4"] = KeyboardInterrupt()
    assert main(["encode", str(six_texts), "-o", str(out)]) == 130
    assert journal.stat().st_size > 4 * 16


def test_a_file_system_without_locks_is_an_error(
    fake: ReusableFake,
    six_texts: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(file: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    assert main(["encode", str(six_texts), "-o", str(tmp_path / "out.npy")]) == 1
    assert capsys.readouterr().err == f"headwaiter-client: {tmp_path / 'out.npy.journal'}: No locks available\n"


def test_a_system_without_flock_is_named(
    fake: ReusableFake, six_texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with pytest.raises(SystemExit, match="Linux or macOS"):
        main(["encode", str(six_texts), "-o", str(tmp_path / "out.npy")])


# -- Disks


@pytest.fixture
def small_disk(tmp_path: Path, starts_processes: None) -> Iterator[Path]:
    """A file system of 16 pages; only root may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={16 * PAGE_BYTES}", "none", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a file system")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def fill(disk: Path, free_pages: int) -> Path:
    """Fill a disk except for some pages, and return the file that fills it."""
    filler = disk / "filler"
    filler.write_bytes(bytes((os.statvfs(disk).f_bavail - free_pages) * PAGE_BYTES))
    assert os.statvfs(disk).f_bavail == free_pages
    return filler


@pytest.fixture
def many_texts(tmp_path: Path) -> Path:
    texts = tmp_path / "many"
    texts.write_text("".join(f"text {number}\n" for number in range(MANY)))
    return texts


@pytest.mark.parametrize(
    ("free_pages", "full", "kept_rows"),
    [
        pytest.param(3, "partial", MANY - 1, id="in the last row"),
        pytest.param(2, "journal", None, id="in the journal"),
        pytest.param(1, "partial", 0, id="in the header"),
        pytest.param(0, "journal", 0, id="in the first line of the journal"),
    ],
)
def test_a_full_disk_is_an_error_and_the_same_command_resumes_once_there_is_room(
    fake: ReusableFake,
    many_texts: Path,
    small_disk: Path,
    capsys: pytest.CaptureFixture[str],
    free_pages: int,
    full: str,
    kept_rows: int | None,
) -> None:
    out, filler = small_disk / "out.npy", fill(small_disk, free_pages)
    command = ["encode", str(many_texts), "-o", str(out), "--dimensions", "3"]
    assert main(command) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"headwaiter-client: {out}.{full}: No space left on device")
    assert ("the same command" in error) == (kept_rows != 0)
    assert error.count("\n") == 1
    assert files(out) == ([] if kept_rows == 0 else ["out.npy.journal", "out.npy.partial"])

    filler.unlink()
    fake.requests.clear()
    assert main(command) == 0
    np.testing.assert_array_equal(np.load(out), expected(many_texts, dimensions=3))
    assert files(out) == ["out.npy"]
    if kept_rows is not None:
        assert len(fake.texts) == MANY - kept_rows
    else:
        assert 0 < len(fake.texts) < MANY


@pytest.mark.parametrize(
    ("limit_bytes", "short"),
    [
        pytest.param(HEADER_BYTES + MANY * 32 - 1, "partial", id="in the last row"),
        pytest.param(HEADER_BYTES + 150 * 32, "partial", id="between rows"),
        pytest.param(100, "journal", id="in the first line of the journal"),
    ],
)
def test_a_file_that_may_not_grow_is_an_error_and_the_same_command_resumes(
    fake: ReusableFake,
    many_texts: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    limit_bytes: int,
    short: str,
) -> None:
    out = tmp_path / "out.npy"
    command = ["encode", str(many_texts), "-o", str(out)]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limits[1]))  # Python ignores SIGXFSZ.
    try:
        assert main(command) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert capsys.readouterr().err.startswith(f"headwaiter-client: {out}.{short}: File too large")
    assert not out.exists()
    assert main(command) == 0
    np.testing.assert_array_equal(np.load(out), expected(many_texts))


def test_the_output_takes_its_place_only_after_the_disk_has_stored_it(
    fake: ReusableFake, six_texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, partial = tmp_path / "out.npy", tmp_path / "out.npy.partial"
    fsync, stored = os.fsync, []

    def observe(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            assert os.path.samestat(os.fstat(descriptor), tmp_path.stat())
            stored.append(("folder", out.exists()))
        else:
            assert os.path.samestat(os.fstat(descriptor), partial.stat())
            np.testing.assert_array_equal(np.load(partial), expected(six_texts))
            stored.append(("file", out.exists()))
        fsync(descriptor)

    monkeypatch.setattr("os.fsync", observe)
    assert main(["encode", str(six_texts), "-o", str(out)]) == 0
    assert stored == [("file", False), ("folder", True)]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_disk_that_does_not_store_the_output_is_an_error(
    fake: ReusableFake,
    six_texts: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    out = tmp_path / "out.npy"

    def refuse(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode) == (kind == "folder"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    command = ["encode", str(six_texts), "-o", str(out)]
    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", refuse)
        assert main(command) == 1
    error = capsys.readouterr().err
    name = f"{out}.partial" if kind == "file" else str(tmp_path)
    assert error.startswith(f"headwaiter-client: {name}: No space left on device")
    assert ("the same command" in error) == (kind == "file")
    if kind == "file":
        assert files(out) == ["out.npy.journal", "out.npy.partial"]
        fake.requests.clear()
        assert main(command) == 0
        assert fake.texts == []
    np.testing.assert_array_equal(np.load(out), expected(six_texts))
    assert files(out) == ["out.npy"]


@pytest.mark.parametrize("lost_row", [0, 2])
def test_a_row_that_the_disk_lost_is_encoded_again(
    fake: ReusableFake, six_texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], lost_row: int
) -> None:
    out, partial = tmp_path / "out.npy", tmp_path / "out.npy.partial"
    command = ["encode", str(six_texts), "-o", str(out)]
    fake.errors_by_text["text 4"] = KeyboardInterrupt()
    assert main(command) == 130
    fake.errors_by_text.clear()
    fake.requests.clear()
    content = bytearray(partial.read_bytes())
    row_bytes = (len(content) - HEADER_BYTES) // 4
    start = HEADER_BYTES + lost_row * row_bytes
    content[start : start + row_bytes] = bytes(row_bytes)
    partial.write_bytes(content)
    capsys.readouterr()
    if lost_row == 0:  # This could also be the file of another list of texts.
        assert main(command) == 1
        assert "the first text or its vector differs" in capsys.readouterr().err
        command.append("--restart")
    assert main(command) == 0
    assert fake.texts == [f"text {number}" for number in range(lost_row, 6)]
    np.testing.assert_array_equal(np.load(out), expected(six_texts))
