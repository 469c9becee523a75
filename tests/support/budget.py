"""Run a command within a budget of processor time: `python -m tests.support.budget UNITS COMMAND...`.

A unit is the processor time of a fixed loop of Python, which this process runs before and after the command. So slow
and fast machines agree whether a command is too expensive. The budget includes all processes that the command starts.
"""

import resource
import subprocess
import sys
import time


def loop_s() -> float:
    """Run calls, dictionaries, strings and sums, as most tests do; return the processor time."""
    start_s = time.process_time()
    sums: dict[str, int] = {}
    for number in range(2_000_000):
        key = str(number % 1000)
        sums[key] = sums.get(key, 0) + number
    return time.process_time() - start_s


def main() -> int:
    """Run the command; return its exit code, or 1 if it succeeds beyond the budget."""
    budget, command = float(sys.argv[1]), sys.argv[2:]
    before_s, start_s = loop_s(), time.monotonic()
    code = subprocess.run(command, check=False).returncode
    wall_s, children = time.monotonic() - start_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    spent_s = children.ru_utime + children.ru_stime
    spent = spent_s / ((before_s + loop_s()) / 2)
    print(f"{spent_s:.0f} s of processor time in {wall_s:.0f} s: {spent:.0f} of {budget:.0f} units of the budget")
    if code == 0 and spent > budget:
        print("beyond the budget: make the slowest tests above cheaper, or let them name what they start")
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main())
