"""An interrupted `encode`, and the run that resumes it."""

import re
from typing import Any

import numpy as np
import pytest

from headwaiter_client import FakeEncoder
from headwaiter_proto import encoder_pb2 as pb
from tests.client.cli.conftest import EncodeJob, ReusableFake, connect


@pytest.mark.parametrize("flags", [[], ["--restart"]])
def test_an_interrupted_run_says_how_to_resume_and_leaves_no_output_file(job: EncodeJob, flags: list[str]) -> None:
    job.interrupt(*flags)
    assert job.printed == ""
    assert job.error.startswith("headwaiter-client: interrupted: ")
    assert ("--restart" in job.error) == bool(flags)
    assert job.files == job.work_files


@pytest.mark.parametrize("flags", [[], ["--model", "fake"]])
def test_the_same_command_encodes_only_the_remaining_texts(job: EncodeJob, flags: list[str]) -> None:
    job.interrupt()
    assert job.run(*flags) == 0
    assert job.fake.texts == ["text 4", "text 5"]
    assert re.findall(r"\d+", job.printed)[:3] == ["6", "4", "8"]
    job.check_output()


def test_another_export_of_the_same_model_resumes_and_another_model_does_not(job: EncodeJob) -> None:
    job.interrupt()
    job.fake._model_ref.results_digest = "other results"
    assert "model was" in job.refusal()
    job.fake._model_ref.results_digest = FakeEncoder()._model_ref.results_digest
    job.fake._model_ref.digest = "another export"
    assert job.run() == 0
    assert job.fake.texts == ["text 4", "text 5"]


@pytest.mark.parametrize(
    ("lines", "sent"),
    [
        (["text 0", "text 1", "other", "text 3", "text 4"], ["other", "text 3", "text 4"]),
        (["text 0", "text 1", "text 2", "text 3"], []),
        (["text 0", "text 1", "text 2"], []),
        ([f"text {number}" for number in range(12)], [f"text {number}" for number in (10, 11, 4, 5, 6, 7, 8, 9)]),
    ],
)
def test_rows_are_kept_up_to_the_first_text_that_differs(job: EncodeJob, lines: list[str], sent: list[str]) -> None:
    job.interrupt()
    job.texts.write_text("\n".join(lines))
    assert job.run() == 0
    assert job.fake.texts == sent
    job.check_output()


@pytest.mark.parametrize(
    ("options", "differences"),
    [
        (["--dtype", "float16"], ["dtype was 'float32'", "'float16'"]),
        (["--prompt", "query", "--dimensions", "3"], ["prompt was ''", "'query'", "dimensions was None", "3"]),
    ],
)
def test_rows_of_other_options_are_kept_unless_restart_is_set(
    job: EncodeJob, options: list[str], differences: list[str]
) -> None:
    job.interrupt()
    error = job.refusal(*options)
    assert error.startswith(f"{job.partial} holds 4 rows")
    for fact in (*differences, "--restart"):
        assert fact in error
    assert job.run() == 0
    assert job.fake.texts == ["text 4", "text 5"]
    job.out.unlink()
    job.interrupt()
    assert job.run(*options, "--restart") == 0
    assert len(job.fake.texts) == len(np.load(job.out)) == 6


def test_resuming_with_truncation_keeps_the_vectors_that_needed_no_truncation(job: EncodeJob) -> None:
    job.interrupt()
    job.interrupt("--truncation", "right")
    assert job.run("--truncation", "left") == 1
    assert job.run("--truncation", "right") == 0
    assert job.fake.texts == ["text 4", "text 5"]
    job.check_output()


def test_rows_of_another_file_are_kept(job: EncodeJob) -> None:
    job.interrupt()
    job.texts.write_text("something else\n")
    assert job.refusal().startswith(f"{job.partial} holds 4 rows of another run (the first text or its vector differs)")
    assert job.files == job.work_files


@pytest.mark.parametrize(
    ("other", "name"), [({"model": "other"}, "model"), ({"precision": pb.PRECISION_INT8}, "precision")]
)
def test_rows_of_another_model_or_precision_are_not_mixed(
    job: EncodeJob, other: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.interrupt()
    connect(monkeypatch, ReusableFake(**other))
    assert job.refusal().startswith(f"{job.partial} holds 4 rows of another run ({name} was '")


@pytest.mark.parametrize("file", ["out.npy.partial", "out.npy.journal"])
@pytest.mark.parametrize(("lost_bytes", "sent"), [(1, 3), (10_000, 6)])
def test_a_row_that_was_not_written_completely_is_encoded_again(
    job: EncodeJob, file: str, lost_bytes: int, sent: int
) -> None:
    job.interrupt()
    damaged = job.out.with_name(file)
    damaged.write_bytes(damaged.read_bytes()[:-lost_bytes])
    assert job.run() == 0
    assert len(job.fake.texts) == sent
    job.check_output()


def test_rows_before_a_bad_line_are_kept_until_the_line_is_fixed(job: EncodeJob) -> None:
    good = job.texts.read_text()
    job.texts.write_text(good.replace("text 5", "a b c d e f g h"))
    for _ in range(2):  # A resumed run counts lines from the start of the file, too.
        error = job.refusal()
        assert error.startswith(f"line 6 of {job.texts} has 10 tokens")
        for fact in ("8", "--truncation"):
            assert fact in error
    job.fake.requests.clear()
    job.texts.write_text(good)
    assert job.run() == 0
    assert job.fake.texts == ["text 4", "text 5"]


def test_a_run_that_encoded_nothing_leaves_no_files(job: EncodeJob) -> None:
    job.fake.errors_by_text["text 0"] = KeyboardInterrupt()
    assert job.run() == 130
    assert job.error == "headwaiter-client: interrupted\n"
    assert job.files == []
