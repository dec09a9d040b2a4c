"""Threads sleep while they wait where others use the cores, and only there."""

import os
import subprocess
import sys
import time

import pytest

from src.system import openmp
from src.system.openmp import Sample, used_by_others
from tests.support import ROOT

BUSY = "while True: pass"


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*openmp.CHOSEN, "OMP_NUM_THREADS", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)


def test_the_own_work_is_not_that_of_others() -> None:
    assert used_by_others(Sample(0, 10, 1), Sample(2, 14, 4)) == 0.5


def test_a_busy_process_is_seen() -> None:
    begin = openmp.sample()
    with subprocess.Popen([sys.executable, "-c", BUSY]) as busy:
        while time.perf_counter() - begin.wall_s < 0.5:  # type: ignore[union-attr]
            pass
        busy.kill()
    end = openmp.sample()
    assert begin is not None and end is not None
    assert end.own_s - begin.own_s + used_by_others(begin, end) * (end.wall_s - begin.wall_s) > 0.4


@pytest.mark.parametrize(("others", "policy"), [(0.0, None), (0.2, None), (1.0, "PASSIVE")])
def test_threads_sleep_beside_others_alone(
    others: float, policy: str | None, clean: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "kept for monkeypatch to restore")
    del os.environ["OMP_WAIT_POLICY"]
    now = time.perf_counter()
    monkeypatch.setattr(openmp, "sample", lambda: Sample(now, 5 * others, 0.0))
    openmp.settle(Sample(now - 5, 0.0, 0.0))
    assert os.environ.get("OMP_WAIT_POLICY") == policy
    assert ("note: other processes use 1.0 cores" in capsys.readouterr().out) == (policy is not None)


@pytest.mark.parametrize("name", [*openmp.CHOSEN, "TORCHELASTIC_RUN_ID"])
def test_the_user_and_the_launcher_of_ranks_decide_first(
    name: str, clean: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert openmp.may_settle(os.environ)
    monkeypatch.setenv(name, "1")
    assert not openmp.may_settle(os.environ)


def test_one_thread_waits_for_none(clean: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert not openmp.may_settle(os.environ)


@pytest.mark.slow
def test_it_is_settled_before_torch_is_imported_once(clean: None) -> None:
    code = (
        "import os, sys\nfrom src.system import openmp\nopenmp.install()\nimport torch\n"
        "print(os.environ.get('OMP_WAIT_POLICY'), any(isinstance(f, openmp.BeforeTorch) for f in sys.meta_path))"
    )
    with subprocess.Popen([sys.executable, "-c", BUSY]) as one, subprocess.Popen([sys.executable, "-c", BUSY]) as two:
        try:
            ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
        finally:  # leaving the block waits for them
            one.kill()
            two.kill()
    assert ended.stdout.splitlines()[-1] == "PASSIVE False"
