"""Run the command headwaiter as a module: `python -m headwaiter_serve`."""

import sys

from headwaiter_serve.cli import main

if __name__ == "__main__":
    sys.exit(main())
