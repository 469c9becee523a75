"""Run a front end as a process: `python -m headwaiter_server.processes`, with the arguments of `front_end_process`."""

import signal


def main() -> None:
    """Ignore the signals that reach all processes of a server, then import and run the front end."""
    # Ctrl-C reaches all processes of a terminal, and systemd sends SIGTERM to all processes of a service. The engine's
    # process drains, and then ends this one. The imports take long enough for a signal to arrive.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    from headwaiter_server.processes import front_end_process

    front_end_process.main()


if __name__ == "__main__":
    main()
