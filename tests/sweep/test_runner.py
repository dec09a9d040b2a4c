"""Jobs as processes: their end states, their cleanup, and how they share GPUs. The commands are small scripts."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from src.errors import UserError
from src.report.job import SweepJob, alive, read_job, sole_launcher, write_job
from src.report.record import Case, Record, RunError, write_record
from src.sweep.gpus import GpuQueue
from src.sweep.outcome import Exit, outcome
from src.sweep.runner import Runner, Slots, current_job
from src.system.files import try_lock

DEADLINE_S = 30


def write_script_job(folder: Path, script: str, **more: object) -> Path:
    """Writes a job that runs a Python script; returns its folder."""
    job = SweepJob(key=folder.name, overrides=[], command=[sys.executable, "-c", script], cwd=str(folder.parent))
    write_job(folder, job.with_(**more))
    return folder


def run_script_job(folder: Path, script: str, **more: object) -> SweepJob:
    """Runs the script as a job; returns the ended job."""
    return Runner(Slots(gpus=[])).run([write_script_job(folder, script, **more)])[folder]


@pytest.mark.parametrize(
    ("script", "state", "reason"),
    [
        ("print('fine')", "done", None),
        ("print('first'); exit('error: hp.lr is wrong')", "failed", "error: hp.lr is wrong"),
        ("exit(3)", "failed", "exit code 3, nothing printed"),
        ("print('step 7', flush=True); import os; os.abort()", "failed", "killed by SIGABRT; last line: step 7"),
        ("raise MemoryError", "oom", "MemoryError"),
        ("exit('CUDA error: out of memory')", "oom", "CUDA error: out of memory"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "failed", "killed by SIGKILL"),
    ],
)
@pytest.mark.slow
def test_the_end_of_a_process_is_a_state_and_a_reason(
    tmp_path: Path, script: str, state: str, reason: str | None
) -> None:
    job = run_script_job(tmp_path / "0", script)
    assert (job.state, job.reason) == (state, reason)
    assert read_job(tmp_path / "0") == job
    assert job.seconds is not None and 0 < job.seconds < DEADLINE_S
    assert not alive(tmp_path / "0")


def test_a_killed_process_while_the_kernel_ran_out_of_memory_is_oom(tmp_path: Path) -> None:
    assert outcome(tmp_path, Exit(-signal.SIGKILL, oom_kills=1))[0] == "oom"
    assert outcome(tmp_path, Exit(1, oom_kills=1))[0] == "failed"  # another process was killed
    case = Case(
        model="moflow", datamodule="zinc250k", trainer="1x2", precision="amp", fix_hp="/", hardware="h200",
        batch_size=512, batch_per="device",
    )  # fmt: skip
    died = RunError(type="RankDied", message="rank 1: ended by SIGKILL (lack of memory?)")
    record = Record(kind="train", case=case, status="failed", unit="molecules", error=died)
    write_record(record, tmp_path / "result.json")
    assert [outcome(tmp_path, Exit(1, oom_kills=kills))[0] for kills in (0, 1)] == ["failed", "oom"]


def test_a_command_that_cannot_be_started_is_a_failure(tmp_path: Path) -> None:
    job = run_script_job(tmp_path / "0", "", command=["/no/such/python"])
    assert job.state == "failed" and job.reason is not None and "/no/such/python" in job.reason


def test_a_job_gets_its_secret_but_its_folder_does_not_contain_it(tmp_path: Path) -> None:
    script = "import sys; sys.exit(sys.argv[1] != 'api_key=open' + '-sesame')"
    command = [sys.executable, "-c", script, "api_key=open-sesame"]
    for number, commands, state in ((0, {tmp_path / "0": command}, "done"), (1, None, "failed")):
        folder = write_script_job(tmp_path / str(number), "", command=command, overrides=command[3:])
        job = Runner(Slots(gpus=[])).run([folder], commands)[folder]
        assert (job.state, job.overrides) == (state, ["api_key=***"])
        assert not any("open-sesame" in file.read_text() for file in folder.iterdir())


def test_a_time_limit_ends_a_job(tmp_path: Path) -> None:
    job = run_script_job(tmp_path / "0", "import signal; signal.pause()", timeout_s=0.1)
    assert (job.state, job.reason) == ("timeout", "longer than sweep.timeout_s=0.1")


def test_no_process_of_a_job_outlives_it(tmp_path: Path) -> None:
    child = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); signal.pause()"
    script = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {child!r}], stdout=subprocess.PIPE, start_new_session=True)
child.stdout.readline()
print(child.pid)
"""
    assert run_script_job(tmp_path / "0", script).state == "done"
    assert not psutil.pid_exists(int((tmp_path / "0" / "log.txt").read_text()))


@pytest.mark.slow
def test_jobs_share_the_gpus(tmp_path: Path) -> None:
    needs = [1, 2, 1, 1, 2, 3, 0]
    show = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"
    folders = [write_script_job(tmp_path / str(number), show, needs=need) for number, need in enumerate(needs)]
    jobs = Runner(Slots(gpus=["4", "5"])).run(folders)
    assert [len(job.devices) for job in jobs.values()] == [
        1,
        2,
        1,
        1,
        2,
        2,
        0,
    ]  # the job that needs 3 gets the 2 there are
    for folder, job in jobs.items():
        assert (folder / "log.txt").read_text().strip() == ",".join(job.devices)
        assert job.begun_s is not None and job.ended_s is not None
        for other in jobs.values():
            if other is not job and set(other.devices) & set(job.devices):
                assert other.ended_s <= job.begun_s or job.ended_s <= other.begun_s  # type: ignore[operator]


@pytest.mark.slow
def test_no_more_than_parallel_jobs_run_at_once(tmp_path: Path) -> None:
    at_once: list[int] = []

    def count(jobs: Mapping[Path, SweepJob]) -> None:
        at_once.append(sum(job.state == "running" for job in jobs.values()))

    Runner(Slots(gpus=[], parallel=2), count).run([write_script_job(tmp_path / str(number), "") for number in range(4)])
    assert max(at_once) == 2


def test_a_job_gets_gpus_that_no_running_job_has() -> None:
    jobs = [
        SweepJob("", [], [], "", needs=needs, devices=devices) for needs, devices in ((2, []), (1, ["0"]), (1, ["2"]))
    ]
    slots = Slots(gpus=["0", "1", "2", "3"])
    allocation = slots.allocate(jobs[0], jobs[1:])
    assert allocation is not None and allocation.gpus == ["1", "3"]
    assert slots.allocate(jobs[0], [*jobs[1:], SweepJob("", [], [], "", devices=["3"])]) is None


def test_an_ended_job_is_not_run_again(tmp_path: Path) -> None:
    folder = write_script_job(tmp_path / "0", "print('again')", state="failed", reason="as it was")
    assert Runner(Slots(gpus=[])).run([folder])[folder].reason == "as it was"
    assert not (folder / "log.txt").exists()


class TestAfterAKill:
    """After SIGKILL of the launcher, of a job's supervisor, or of all processes."""

    def test_a_new_launcher_waits_for_a_running_job(self, tmp_path: Path) -> None:
        folder = write_script_job(tmp_path / "0", "open('0/go').read(); print('ran')")
        os.mkfifo(folder / "go")
        script = f"""
from pathlib import Path
from src.sweep.runner import Runner, Slots
import os, signal
def die(jobs):
    if any(job.state == "running" for job in jobs.values()):
        os.kill(os.getpid(), signal.SIGKILL)
Runner(Slots(gpus=[]), die).run([Path({str(folder)!r})])
"""
        killed = subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).resolve().parents[2])
        assert killed.returncode == -signal.SIGKILL
        with (folder / "go").open("w"):  # blocks until the job opens it too, so the job is alive
            assert current_job(folder).state == "running"
        jobs = Runner(Slots(gpus=[])).run([folder])
        assert jobs[folder].state == "done"
        assert (folder / "log.txt").read_text() == "ran\n"

    def test_a_job_whose_processes_are_gone_is_run_again(self, tmp_path: Path) -> None:
        folder = write_script_job(tmp_path / "0", "print('ran')", state="running", supervisor=2**22 + 1)
        assert current_job(folder).state == "interrupted"
        assert Runner(Slots(gpus=[])).run([folder])[folder].state == "done"

    def test_a_job_whose_supervisor_is_killed_is_waited_for(self, tmp_path: Path) -> None:
        script = "import os, signal; os.kill(os.getppid(), signal.SIGKILL); open('0/go').read(); print('went on')"
        folder = write_script_job(tmp_path / "0", script)
        os.mkfifo(folder / "go")
        states: list[str] = []

        def release(jobs: Mapping[Path, SweepJob]) -> None:
            supervisor = jobs[folder].supervisor
            if supervisor is not None and not states and psutil.Process(supervisor).status() == psutil.STATUS_ZOMBIE:
                states.append(current_job(folder).state)
                (folder / "go").open("w").close()

        job = Runner(Slots(gpus=[]), release).run([folder])[folder]
        assert states == ["running"]
        assert (job.state, job.reason) == ("interrupted", "killed together with its supervisor")
        assert (tmp_path / "0" / "log.txt").read_text() == "went on\n"

    def test_a_state_written_just_before_the_check_is_kept(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = write_script_job(tmp_path / "0", "", state="running")

        def ends_meanwhile(folder: Path) -> bool:
            write_job(folder, read_job(folder).with_(state="failed", reason="its own"))
            return False

        monkeypatch.setattr("src.sweep.runner.alive", ends_meanwhile)
        assert current_job(folder).reason == "its own"

    def test_a_job_is_running_until_the_last_holder_of_its_lock_ends(self, tmp_path: Path) -> None:
        folder = write_script_job(tmp_path / "0", "", state="running")
        lock = try_lock(folder / "lock")
        assert lock is not None
        command = [sys.executable, "-c", "input()"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(lock,)) as holder:
            os.close(lock)
            assert current_job(folder).state == "running"
            holder.communicate(b"\n", timeout=DEADLINE_S)
        assert current_job(folder).state == "interrupted"

    def test_two_launchers_do_not_run_one_sweep(self, tmp_path: Path) -> None:
        with sole_launcher(tmp_path), pytest.raises(UserError, match="another launcher"), sole_launcher(tmp_path):
            pass
        with sole_launcher(tmp_path):
            pass


def test_two_sweeps_do_not_use_one_gpu_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    slots = Slots(gpus=["4", "5"], lock_gpus=True)
    taken = GpuQueue().acquire(["4"], 1)  # by a job of another sweep
    assert taken is not None
    one, two = (slots.allocate(SweepJob("", [], [], "", needs=needs), []) for needs in (1, 2))
    assert one is not None and one.gpus == ["5"] and two is None
    for lock in (*taken[1], *one.locks):
        os.close(lock)
    two = slots.allocate(SweepJob("", [], [], "", needs=2), [])
    assert two is not None and two.gpus == ["4", "5"]


def test_a_sweep_waiting_for_two_gpus_precedes_a_later_request_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    gpus, busy, first, second = ["4", "5"], GpuQueue(), GpuQueue(), GpuQueue()
    four, five = busy.acquire(["4"], 1), busy.acquire(["5"], 1)
    assert four is not None and five is not None
    assert first.acquire(gpus, 2) is None
    os.close(four[1][0])
    assert second.acquire(gpus, 1) is None and second.acquire(["6"], 1) is not None  # GPU 6 is not reserved
    assert first.acquire(gpus, 2) is None
    os.close(five[1][0])
    assert second.acquire(gpus, 1) is None
    both = first.acquire(gpus, 2)
    assert both is not None and both[0] == gpus
    os.close(both[1][0])
    assert second.acquire(gpus, 1) is not None


def test_requests_for_overlapping_gpus_do_not_deadlock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    busy, left, right = GpuQueue().acquire(["4"], 1), GpuQueue(), GpuQueue()
    assert busy is not None
    assert left.acquire(["4", "5"], 2) is None  # reserves both
    assert right.acquire(["5", "6"], 2) is None  # gives its reservation of 6 up
    assert GpuQueue().acquire(["6"], 1) is not None


def test_an_interrupted_sweep_gives_its_reservations_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    four, five = GpuQueue().acquire(["4"], 1), GpuQueue().acquire(["5"], 1)
    slots = Slots(gpus=["4", "5"], lock_gpus=True)
    assert four is not None and five is not None
    runner = Runner(slots, lambda _: setattr(runner, "interrupts", 1) if slots.queue.reserved else None)
    runner.run([write_script_job(tmp_path / "0", "", needs=1)])
    os.close(four[1][0])
    assert GpuQueue().acquire(["4"], 1) is not None


def test_a_running_job_keeps_its_gpus_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = write_script_job(tmp_path / "0", "open('0/go').read()", needs=1)
    os.mkfifo(folder / "go")
    free: list[bool] = []
    queue = GpuQueue()

    def look(jobs: Mapping[Path, SweepJob]) -> None:
        if jobs[folder].state == "running" and not free:
            free.append(queue.acquire(["4"], 1) is not None)
            (folder / "go").open("w").close()

    assert Runner(Slots(gpus=["4"], lock_gpus=True), look).run([folder])[folder].state == "done"
    assert free == [False]
    assert queue.acquire(["4"], 1) is not None
