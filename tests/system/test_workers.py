import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.request import HTTPDefaultErrorHandler, Request

import psutil
import pytest

from src.system.files import try_lock
from src.system.workers import WorkerPool, cgroup_quotas, cpu_count
from tests.support import ROOT


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


def test_calls_after_the_last_worker_has_died_do_not_wait_for_it():
    with WorkerPool(2) as pool:
        for future in [pool.submit(os._exit, 3) for _ in range(2)]:
            with pytest.raises(RuntimeError, match="while it ran _exit: exit code 3"):
                future.result()
        for future in [pool.submit(math.sqrt, 4.0) for _ in range(4)]:
            with pytest.raises(RuntimeError, match="all worker processes have ended"):
                future.result(timeout=30)


def test_a_worker_that_was_killed_is_not_used_again():
    with WorkerPool(2) as pool:
        with pytest.raises(RuntimeError, match=r"killed by SIGKILL \(lack of memory\?\)"):
            pool.submit(signal.raise_signal, signal.SIGKILL).result()
        assert [pool.submit(math.sqrt, 4.0).result(timeout=30) for _ in range(4)] == [2.0] * 4


def test_a_worker_that_dies_while_it_sends_is_reported():
    with WorkerPool(1) as pool:
        code = "import os, struct; os.write(3, struct.pack('<Q', 99) + b'half'); os._exit(7)"  # 3: of the answers
        with pytest.raises(RuntimeError, match="while it ran exec: exit code 7"):
            pool.submit(exec, code, {}).result(timeout=30)


def test_a_result_that_cannot_be_pickled_names_the_call_and_costs_no_worker():
    with WorkerPool(1) as pool:
        with pytest.raises(RuntimeError, match=r"what open returned cannot be pickled \(TypeError: .*TextIOWrapper"):
            pool.submit(open, os.devnull).result(timeout=30)
        assert pool.submit(math.sqrt, 4.0).result(timeout=30) == 2.0


def test_an_error_that_cannot_be_unpickled_names_the_call_and_costs_no_worker():
    raises: Any = HTTPDefaultErrorHandler().http_error_default  # its error needs more than is pickled
    with WorkerPool(1) as pool:
        with pytest.raises(RuntimeError, match=r"_default returned or raised cannot be unpickled \(TypeError"):
            pool.submit(raises, Request("http://none"), None, 404, "", {}).result(timeout=30)
        assert pool.submit(math.sqrt, 4.0).result(timeout=30) == 2.0


def test_a_call_that_cannot_be_pickled_or_unpickled_costs_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    only_here = ModuleType("only_here")
    exec("def call(): pass", vars(only_here))
    monkeypatch.setitem(sys.modules, "only_here", only_here)
    with WorkerPool(1) as pool:
        with open(os.devnull) as file, pytest.raises(TypeError, match="pickle"):
            pool.submit(print, [0] * 10**6, file).result(timeout=30)
        with pytest.raises(ModuleNotFoundError, match="only_here"):
            pool.submit(only_here.call).result(timeout=30)
        assert pool.submit(math.sqrt, 4.0).result(timeout=30) == 2.0


@pytest.mark.parametrize(
    ("groups", "files", "quotas"),
    [
        ("0::/job/step\n", {"job/cpu.max": "150000 100000\n", "job/step/cpu.max": "max 100000\n"}, [1.5]),
        ("0::/\n", {"cpu.max": "400000 100000\n"}, [4.0]),
        (
            "4:memory:/job\n3:cpu,cpuacct:/job\n",
            {"cpu,cpuacct/job/cpu.cfs_quota_us": "50000\n", "cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
             "cpu,cpuacct/cpu.cfs_quota_us": "-1\n", "cpu,cpuacct/cpu.cfs_period_us": "100000\n"},
            [0.5],
        ),
    ],
)  # fmt: skip
def test_the_limits_of_cgroups_count(tmp_path: Path, groups: str, files: dict[str, str], quotas: list[float]) -> None:
    for name, text in files.items() | {("../../../proc/self/cgroup", groups)}:
        file = tmp_path / "sys/fs/cgroup" / name
        (tmp_path / "sys/fs/cgroup").mkdir(parents=True, exist_ok=True)
        Path(os.path.normpath(file)).parent.mkdir(parents=True, exist_ok=True)
        Path(os.path.normpath(file)).write_text(text)
    assert [*cgroup_quotas(tmp_path)] == quotas


def test_workers_of_the_lowest_priority_leave_others_as_they_are():
    with WorkerPool(1, niceness=19) as pool, WorkerPool(1) as other:
        assert pool.submit(os.nice, 0).result() == 19
        assert other.submit(os.nice, 0).result() == os.nice(0)


def test_cores_are_those_of_the_affinity():
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert cpu_count() == 1
    finally:
        os.sched_setaffinity(0, before)


def test_no_file_of_ours_counts_the_cores_of_the_machine_instead():
    files = [file for folder in ("src", "benchmarks") for file in (ROOT / folder).rglob("*.py")]
    asking = [str(file.relative_to(ROOT)) for file in files if "os.cpu_count" in file.read_text(encoding="utf-8")]
    assert asking == ["src/system/workers.py"]


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
