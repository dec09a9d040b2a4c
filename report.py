"""Prints the records of runs as tables beside the published results; `python report.py --help`."""

import sys

from src.report.cli import main

if __name__ == "__main__":
    sys.exit(main())
