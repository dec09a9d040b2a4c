import math
import os
import signal
import subprocess
import sys

import psutil
import pytest

from src.system.files import try_lock
from src.system.workers import ROOT, WorkerPool


def test_results_and_errors_come_back():
    with WorkerPool(2) as pool:
        futures = [pool.submit(math.sqrt, number) for number in (4.0, 9.0, -1.0, 16.0)]
        assert [futures[i].result() for i in (0, 1, 3)] == [2.0, 3.0, 4.0]
        with pytest.raises(ValueError, match="math domain"):
            futures[2].result()
        assert pool.submit(os.getpid).result() != os.getpid()


def test_what_a_worker_prints_does_not_disturb_its_answers():
    with WorkerPool(1) as pool:
        pool.submit(os.system, "echo printed").result()
        pool.submit(print, "printed").result()
        assert pool.submit(math.sqrt, 4.0).result() == 2.0


def test_leaving_ends_the_processes_and_what_they_do():
    with WorkerPool(2) as pool:
        workers = [process.pid for process in pool._processes]
        endless = pool.submit(signal.pause)
    assert not any(psutil.pid_exists(worker) for worker in workers)
    with pytest.raises(RuntimeError, match="worker"):
        endless.result()


def test_a_worker_that_dies_is_reported():
    with WorkerPool(1) as pool, pytest.raises(RuntimeError, match="exit code 3"):
        pool.submit(os._exit, 3).result()


def test_what_a_worker_keeps_stays_locked_until_it_ends(tmp_path):
    lock = try_lock(tmp_path / "lock")
    assert lock is not None
    with WorkerPool(1, keep=[lock]):
        os.close(lock)
        assert try_lock(tmp_path / "lock") is None
    assert try_lock(tmp_path / "lock") is not None


@pytest.mark.parametrize("busy", ["", "pool.submit(time.sleep, 600); pool.submit(time.sleep, 600); time.sleep(0.2)\n"])
@pytest.mark.slow
def test_workers_end_when_their_parent_is_killed(busy: str) -> None:
    code = (
        "import os, signal, time\n"
        "from src.system.workers import WorkerPool\n"
        "pool = WorkerPool(2)\n"
        "print(*{pool.submit(os.getpid).result() for _ in range(8)}, flush=True)\n"
        f"{busy}"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    parent = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.returncode == -signal.SIGKILL
    workers = [psutil.Process(int(pid)) for pid in parent.stdout.split() if psutil.pid_exists(int(pid))]
    _, alive = psutil.wait_procs(workers, timeout=20)
    assert [worker for worker in alive if worker.status() != psutil.STATUS_ZOMBIE] == []
