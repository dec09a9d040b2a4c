"""A command whose reader goes away, as `head` does, ends as without it."""

import os
import subprocess
import sys

from tests.support import ROOT


def unread(*words: str) -> tuple[int, str]:
    """Returns exit code and stderr of a command whose stdout has no reader from the start."""
    reading, writing = os.pipe()
    os.close(reading)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, *words], cwd=ROOT, env=environment, stdout=writing, stderr=subprocess.PIPE,
                          text=True, timeout=120)  # fmt: skip
    os.close(writing)
    return done.returncode, done.stderr


def test_a_report_that_nobody_reads_ends_quietly() -> None:
    assert unread("report.py", "published", "dlrm") == (0, "")
