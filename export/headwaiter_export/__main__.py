"""Run the command headwaiter-export as a module: `python -m headwaiter_export`."""

import sys

from headwaiter_export.cli import main

if __name__ == "__main__":
    sys.exit(main())
