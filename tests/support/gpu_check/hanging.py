"""The GPU check with a single part, which hangs: python -m tests.support.gpu_check.hanging FINDINGS."""

import sys
from threading import Event
from unittest.mock import patch

from bench.findings import Findings
from bench.gpu import __main__ as check
from bench.gpu.settings import Settings
from tests.support.gpu_check.rehearsal import EFFORT, Faults, RehearsalGpu


def wait_for_ever(_: Settings, findings: Findings) -> None:
    """Record a figure, and never return."""
    findings.record("measured before", 7)
    Event().wait()


if __name__ == "__main__":
    with patch.dict(check.PARTS, kernels=check.Part(wait_for_ever, 1)):
        check.main(
            ["kernels", "--json", sys.argv[1]],
            lambda _, checkpoint, folder: Settings(EFFORT, checkpoint, folder, RehearsalGpu(Faults())),
            budget_s=1.0,
        )
