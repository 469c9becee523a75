"""The processors that the process may use, and variables that no program reads."""

import os
from pathlib import Path

import pytest

from headwaiter_server.settings.environment import unknown_variables, usable_processors
from headwaiter_server.settings.flags import Settings, variable

AFFINITY = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("files", "processors"),
    [
        ({}, AFFINITY),
        ({"cpu.max": "max 100000\n"}, AFFINITY),
        ({"cpu.max": "100000 100000\n"}, 1),
        ({"cpu.max": "20000 100000\n"}, 1),
        ({"cpu.max": "99900000 100000\n"}, AFFINITY),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, AFFINITY),
        ({"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
        ({"cpu.max": "broken"}, AFFINITY),
    ],
)
def test_the_affinity_and_the_quota_bound_the_processors(
    files: dict[str, str], processors: int, tmp_path: Path
) -> None:
    (tmp_path / "cpu").mkdir()
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    assert usable_processors(tmp_path) == processors


def test_a_session_has_at_most_one_thread_for_each_processor() -> None:
    settings = Settings(Path("b"), threads=AFFINITY + 97)
    assert settings.threads_per_instance == usable_processors()
    (warning,) = settings.warnings({})
    assert all(fact in warning for fact in ("--threads", str(AFFINITY + 97), str(usable_processors())))
    assert Settings(Path("b"), threads=1).threads_per_instance == 1
    assert Settings(Path("b"), threads=1).warnings({}) == []


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("HEADWAITER_THREAD", "HEADWAITER_THREADS"),
        ("HEADWAITER_TOKENBUDGET", "HEADWAITER_TOKEN_BUDGET"),
        ("HEADWAITER_ZZZ", "--help"),
        ("HEADWAITER_THREADS", None),
        ("HEADWAITER_METRICS_PORT", None),
        ("HEADWAITER_CLIENT_TLS_CA", None),
        ("HEADWAITER_SERVICE_HOST", None),
        ("HEADWAITER_PORT_50051_TCP_ADDR", None),
        ("HEADWAITER_CPU_SERVICE_PORT_GRPC", None),
        ("OTHER_THREADS", None),
    ],
)
def test_a_variable_that_no_program_reads_is_named_with_a_similar_one(name: str, advice: str | None) -> None:
    problems = unknown_variables([name], {variable(field) for field in Settings.__dataclass_fields__})
    assert [name in problem and advice in problem for problem in problems if advice] == [True] * bool(advice)
    assert bool(problems) is bool(advice)
