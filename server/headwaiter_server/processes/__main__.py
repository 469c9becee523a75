"""Run a front end as a process: `python -m headwaiter_server.processes`, with the arguments of `front_end_process`."""

from headwaiter_server.processes import front_end_process

if __name__ == "__main__":
    front_end_process.main()
