"""Run the command headwaiter-server as a module: `python -m headwaiter_server`."""

import sys

from headwaiter_server.cli import main

if __name__ == "__main__":
    sys.exit(main())
