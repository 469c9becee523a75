"""Run a front end as a process: `python -m headwaiter_server.processes`, with the arguments of `front_end_process`."""

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ignore the signals that reach all processes of a server, then import and run the front end."""
    # Ctrl-C reaches all processes of a terminal, and systemd sends SIGTERM to all processes of a service. The engine's
    # process drains, and then ends this one. The imports take long enough for a signal to arrive.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        # A stopped process keeps the ports. If the engine's process ends, let this process go on: it learns from its
        # socket that the engine has ended, answers its callers, and ends. SIGKILL would leave the callers unanswered.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)
    from headwaiter_server.processes import front_end_process

    front_end_process.main()


if __name__ == "__main__":
    main()
