"""A rank that waits in device code for others does not see a signal; the watchdog does."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import ROOT

# The main thread takes no signals and stays in a C function, as in NCCL; another thread takes them.
HANGING = """
import ctypes, os, signal, time
from src.launch import watchdog as module
module.LOOKS_EVERY_S, module.PATIENCE_AFTER_FAILURE_S = 0.2, 0.8
signal.signal(signal.SIGTERM, lambda *_: None)
watchdog = module.Watchdog(patience_s=0.5)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
def waits_for_a_rank():
    ctypes.CDLL(None).pause()
"""
SIGNALLED = "os.kill(os.getpid(), signal.SIGTERM)"
BUSY = """
import re, time
end = time.monotonic() + 1.5
while time.monotonic() < end:
    re.purge()
    re.compile("(a|b)*c{2,3}[d-f]+")  # Python code, in many places
watchdog.close()
watchdog.close()
watchdog.alert()
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("alarm", [SIGNALLED, "watchdog.alert()"])
@pytest.mark.slow
def test_a_main_thread_that_hangs_is_shown_and_ended(alarm: str) -> None:
    # The thread's first look comes 0.2 seconds after the alarm, when the main thread hangs.
    ended = run(f"{HANGING}\n{alarm}\nwaits_for_a_rank()")
    assert ended.returncode == 143
    assert "in waits_for_a_rank" in ended.stderr and "hung for 0.5 s" in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("alarm", "code"), [("", 0), (SIGNALLED, 143), ("watchdog.alert()", 143)])
def test_a_watchdog_that_rests_waits_for_another_signal(alarm: str, code: int) -> None:
    """The main thread stays at one instruction for longer than the watchdog's patience, as while a rank saves."""
    watched_then_rests = f"{SIGNALLED}\ntime.sleep(0.3)\nwatchdog.rest(0.2)\ntime.sleep(0.3)"
    ended = run(f"{HANGING}\n{watched_then_rests}\n{alarm}\nctypes.CDLL(None).sleep(2)")
    assert ended.returncode == code, ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("failed", "kind", "is_silent"),
    [("1", "UserError", True), ("0", "UserError", False), ("1", "RankLost", False)],
    ids=["another", "itself", "one that lost this one"],
)
def test_a_rank_that_waits_for_one_that_failed_ends_soon_and_silently(
    failed: str, kind: str, is_silent: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "0" / "error.json"))
    (tmp_path / failed).mkdir()
    (tmp_path / failed / "error.json").write_text(json.dumps({"error": {"type": kind}}))
    begin_s = time.monotonic()
    ended = run(f"{HANGING.replace('_s=0.5', '_s=1.6')}\n{SIGNALLED}\nwaits_for_a_rank()")
    assert ended.returncode == 143
    if is_silent:
        assert ended.stderr == ""
    else:
        assert "hung for 1.6 s" in ended.stderr and time.monotonic() - begin_s > 1.6


@pytest.mark.slow
def test_a_main_thread_that_moves_is_left_alone() -> None:
    # Six looks: two or three may meet it at the same place by chance.
    patient = HANGING.replace("patience_s=0.5", "patience_s=1.0")
    ended = run(f"{patient}\n{SIGNALLED}\n{BUSY}")
    assert (ended.returncode, ended.stderr) == (0, "")
