"""Run a command within a budget of processor time: `python -m tests.support.budget SECONDS COMMAND...`.

The budget includes all processes that the command starts.
"""

import resource
import subprocess
import sys
import time


def main() -> int:
    """Run the command; return its exit code, or 1 if it succeeds beyond the budget."""
    budget_s, command = float(sys.argv[1]), sys.argv[2:]
    start_s = time.monotonic()
    code = subprocess.run(command, check=False).returncode
    wall_s, children = time.monotonic() - start_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    spent_s = children.ru_utime + children.ru_stime
    print(f"{spent_s:.0f} of {budget_s:.0f} s of processor time, in {wall_s:.0f} s")
    if code == 0 and spent_s > budget_s:
        print("beyond the budget: make the slowest tests above cheaper, or let them name what they start")
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main())
