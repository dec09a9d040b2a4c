"""Commands that are forked from a warm process are started, run and end as those that Python starts."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import warm

pytestmark = pytest.mark.slow

SCRIPT = """
import atexit, json, os, sys, threading
from pathlib import Path
import __main__
atexit.register(print, "at exit")
threading.Thread(target=lambda: (threading.main_thread().join(), print("of a thread"))).start()
noted = {
    "words": sys.argv, "name": __name__, "file": __file__, "main": __main__.__dict__ is globals(), "path": sys.path,
    "folder": os.getcwd(), "variable": os.environ["GIVEN"], "input": sys.stdin.read(),
    "leads": os.getsid(0) == os.getpid(), "files": len(os.listdir("/proc/self/fd")),
    "patched": hasattr(sys.modules.get("torch"), "patched"),
}
Path("noted.json").write_text(json.dumps(noted))
print("told", file=sys.stderr)
exec(sys.argv[1])
"""
ENDS = {"pass": 0, "sys.exit(3)": 3, "sys.exit('why')": 1, "1 / 0": 1, "os.kill(os.getpid(), 9)": -9, "os.abort()": -6}


@pytest.mark.parametrize("end", ENDS)
def test_a_command_is_as_a_process_of_its_own(end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.setattr("torch.patched", True, raising=False)
    environment = warm.usual() | {"GIVEN": "a variable"}
    words = "script.py", end, "a b"
    plain = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, env=environment, input="", capture_output=True, text=True
    )
    noted = (tmp_path / "noted.json").read_text()
    forked = warm.run(*words, cwd=tmp_path, env=environment)
    assert forked.returncode == plain.returncode == ENDS[end]
    assert (tmp_path / "noted.json").read_text() == noted
    assert forked.stdout == plain.stdout
    assert forked.stderr.splitlines()[-1:] == plain.stderr.splitlines()[-1:]


def test_a_variable_is_there_when_modules_are_imported(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("from src import cli\nprint(cli.DEBUGGING)")
    printed = [
        warm.run("script.py", cwd=tmp_path, env=warm.usual() | variables).stdout
        for variables in ({}, {"HYDRA_FULL_ERROR": "1"}, {})
    ]
    assert printed == ["False\n", "True\n", "False\n"]


def test_signals_and_a_limit_of_time(tmp_path: Path) -> None:
    script = """import os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # which is ignored where tests run in the background
ends, begins = os.pipe()
os.set_blocking(begins, False)
signal.set_wakeup_fd(begins)  # for a signal that comes before the wait
print('here', flush=True)
os.read(ends, 1)
"""
    (tmp_path / "script.py").write_text(script)
    waiting = warm.Command("script.py", cwd=tmp_path, group=True)
    assert waiting.stdout.readline() == "here\n" and waiting.poll() is None and os.getsid(waiting.pid) == waiting.pid
    waiting.send_signal(signal.SIGINT)
    _, err = waiting.communicate()
    assert waiting.returncode == -signal.SIGINT and err.splitlines()[-1] == "KeyboardInterrupt"
    with pytest.raises(subprocess.TimeoutExpired):
        warm.run("script.py", cwd=tmp_path, timeout=0.2)
