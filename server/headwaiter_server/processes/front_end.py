"""Run a front end as a process, which `ps` then shows by this name; the arguments are those of `front_end_process`."""

from headwaiter_server.processes import front_end_process

if __name__ == "__main__":
    front_end_process.main()
