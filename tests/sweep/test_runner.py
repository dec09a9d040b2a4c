"""Jobs as processes: how they end, what they leave behind, how they share GPUs. The commands are small scripts."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from src.errors import UserError
from src.report.record import Case, Record, RunError, write_record
from src.sweep.gpus import Line
from src.sweep.job import Job, alive, read_job, sole_launcher, write_job
from src.sweep.outcome import Exit, outcome
from src.sweep.runner import Runner, Slots, settled
from src.system.files import try_lock

DEADLINE_S = 30


def place(folder: Path, script: str, **more: object) -> Path:
    """Writes the job of a Python script; returns its folder."""
    job = Job(key=folder.name, overrides=[], command=[sys.executable, "-c", script], cwd=str(folder.parent))
    write_job(folder, job.with_(**more))
    return folder


def ended(folder: Path, script: str, **more: object) -> Job:
    """The job as it ended."""
    return Runner(Slots(gpus=[])).run([place(folder, script, **more)])[folder]


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
def test_the_end_of_a_process_is_a_state_and_a_reason(
    tmp_path: Path, script: str, state: str, reason: str | None
) -> None:
    job = ended(tmp_path / "0", script)
    assert (job.state, job.reason) == (state, reason)
    assert read_job(tmp_path / "0") == job
    assert job.seconds is not None and 0 < job.seconds < DEADLINE_S
    assert not alive(tmp_path / "0")


def test_a_killed_process_while_the_kernel_ran_out_of_memory_is_oom(tmp_path: Path) -> None:
    assert outcome(tmp_path, Exit(-signal.SIGKILL, oom_kills=1))[0] == "oom"
    case = Case(
        model="moflow", datamodule="zinc250k", trainer="1x2", precision="amp", fix_hp="/", hardware="h200",
        batch_size=512, batch_per="device",
    )  # fmt: skip
    died = RunError(type="RankDied", message="rank 1: ended by SIGKILL (want of memory?)")
    record = Record(kind="train", case=case, status="failed", unit="molecules", error=died)
    write_record(record, tmp_path / "result.json")
    assert [outcome(tmp_path, Exit(1, oom_kills=kills))[0] for kills in (0, 1)] == ["failed", "oom"]


def test_a_command_that_cannot_be_started_is_a_failure(tmp_path: Path) -> None:
    job = ended(tmp_path / "0", "", command=["/no/such/python"])
    assert job.state == "failed" and job.reason is not None and "/no/such/python" in job.reason


def test_a_job_gets_its_secret_which_its_folder_does_not_hold(tmp_path: Path) -> None:
    script = "import sys; sys.exit(sys.argv[1] != 'api_key=open' + '-sesame')"
    command = [sys.executable, "-c", script, "api_key=open-sesame"]
    for number, commands, state in ((0, {tmp_path / "0": command}, "done"), (1, None, "failed")):
        folder = place(tmp_path / str(number), "", command=command, overrides=command[3:])
        job = Runner(Slots(gpus=[])).run([folder], commands)[folder]
        assert (job.state, job.overrides) == (state, ["api_key=***"])
        assert not any("open-sesame" in file.read_text() for file in folder.iterdir())


def test_a_time_limit_ends_a_job(tmp_path: Path) -> None:
    job = ended(tmp_path / "0", "import signal; signal.pause()", timeout_s=0.1)
    assert (job.state, job.reason) == ("timeout", "longer than sweep.timeout_s=0.1")


def test_nothing_of_a_job_outlives_it(tmp_path: Path) -> None:
    child = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); signal.pause()"
    script = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {child!r}], stdout=subprocess.PIPE, start_new_session=True)
child.stdout.readline()
print(child.pid)
"""
    assert ended(tmp_path / "0", script).state == "done"
    assert not psutil.pid_exists(int((tmp_path / "0" / "log.txt").read_text()))


def test_jobs_share_the_gpus(tmp_path: Path) -> None:
    needs = [1, 2, 1, 1, 2, 3, 0]
    show = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"
    folders = [place(tmp_path / str(number), show, needs=need) for number, need in enumerate(needs)]
    jobs = Runner(Slots(gpus=["4", "5"])).run(folders)
    assert [len(job.devices) for job in jobs.values()] == [
        1,
        2,
        1,
        1,
        2,
        2,
        0,
    ]  # 3 are not there: it gets what there is
    for folder, job in jobs.items():
        assert (folder / "log.txt").read_text().strip() == ",".join(job.devices)
        assert job.begun_s is not None and job.ended_s is not None
        for other in jobs.values():
            if other is not job and set(other.devices) & set(job.devices):
                assert other.ended_s <= job.begun_s or job.ended_s <= other.begun_s  # type: ignore[operator]


def test_no_more_jobs_than_asked_for_run_at_once(tmp_path: Path) -> None:
    at_once: list[int] = []

    def count(jobs: Mapping[Path, Job]) -> None:
        at_once.append(sum(job.state == "running" for job in jobs.values()))

    Runner(Slots(gpus=[], parallel=2), count).run([place(tmp_path / str(number), "") for number in range(4)])
    assert max(at_once) == 2


def test_what_has_ended_is_not_run_again(tmp_path: Path) -> None:
    folder = place(tmp_path / "0", "print('again')", state="failed", reason="as it was")
    assert Runner(Slots(gpus=[])).run([folder])[folder].reason == "as it was"
    assert not (folder / "log.txt").exists()


class TestAfterAKill:
    """Of the launcher, of a job's supervisor, of everything."""

    def test_a_living_job_is_joined_and_its_end_is_known(self, tmp_path: Path) -> None:
        folder = place(tmp_path / "0", "open('0/go').read(); print('ran')")
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
        with (folder / "go").open("w"):  # opens when the job does: it is alive
            assert settled(folder).state == "running"
        jobs = Runner(Slots(gpus=[])).run([folder])
        assert jobs[folder].state == "done"
        assert (folder / "log.txt").read_text() == "ran\n"

    def test_a_job_whose_processes_are_gone_is_run_again(self, tmp_path: Path) -> None:
        folder = place(tmp_path / "0", "print('ran')", state="running", supervisor=2**22 + 1)
        assert settled(folder).state == "interrupted"
        assert Runner(Slots(gpus=[])).run([folder])[folder].state == "done"

    def test_a_job_that_loses_its_supervisor_is_waited_for(self, tmp_path: Path) -> None:
        script = "import os, signal; os.kill(os.getppid(), signal.SIGKILL); open('0/go').read(); print('went on')"
        folder = place(tmp_path / "0", script)
        os.mkfifo(folder / "go")
        states: list[str] = []

        def release(jobs: Mapping[Path, Job]) -> None:
            watcher = jobs[folder].supervisor
            if watcher is not None and not states and psutil.Process(watcher).status() == psutil.STATUS_ZOMBIE:
                states.append(settled(folder).state)
                (folder / "go").open("w").close()

        job = Runner(Slots(gpus=[]), release).run([folder])[folder]
        assert states == ["running"]
        assert (job.state, job.reason) == ("interrupted", "killed together with the process that watched it")
        assert (tmp_path / "0" / "log.txt").read_text() == "went on\n"

    def test_an_end_that_is_written_a_moment_ago_counts(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = place(tmp_path / "0", "", state="running")

        def ends(folder: Path) -> bool:
            write_job(folder, read_job(folder).with_(state="failed", reason="its own"))
            return False

        monkeypatch.setattr("src.sweep.runner.alive", ends)
        assert settled(folder).reason == "its own"

    def test_a_job_lives_as_long_as_its_own_process(self, tmp_path: Path) -> None:
        folder = place(tmp_path / "0", "", state="running")
        lock = try_lock(folder / "lock")
        assert lock is not None
        holder = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(lock,))
        os.close(lock)
        assert settled(folder).state == "running"
        holder.communicate(b"\n", timeout=DEADLINE_S)
        assert settled(folder).state == "interrupted"

    def test_two_launchers_do_not_run_one_sweep(self, tmp_path: Path) -> None:
        with sole_launcher(tmp_path), pytest.raises(UserError, match="another launcher"), sole_launcher(tmp_path):
            pass
        with sole_launcher(tmp_path):
            pass


def test_two_sweeps_do_not_use_a_gpu_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    slots = Slots(gpus=["4", "5"], alone=True)
    taken = Line().hold(["4"], 1)  # as a job of another sweep does
    assert taken is not None
    one, two = (slots.room_for(Job("", [], [], "", needs=needs), []) for needs in (1, 2))
    assert one is not None and one.gpus == ["5"] and two is None
    for lock in (*taken[1], *one.locks):
        os.close(lock)
    two = slots.room_for(Job("", [], [], "", needs=2), [])
    assert two is not None and two.gpus == ["4", "5"]


def test_who_waits_for_two_gpus_comes_before_who_wants_one_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    gpus, busy, first, second = ["4", "5"], Line(), Line(), Line()
    four, five = busy.hold(["4"], 1), busy.hold(["5"], 1)
    assert four is not None and five is not None
    assert first.hold(gpus, 2) is None
    os.close(four[1][0])
    assert second.hold(gpus, 1) is None and second.hold(["6"], 1) is not None  # others are nobody's
    assert first.hold(gpus, 2) is None
    os.close(five[1][0])
    assert second.hold(gpus, 1) is None
    both = first.hold(gpus, 2)
    assert both is not None and both[0] == gpus
    os.close(both[1][0])
    assert second.hold(gpus, 1) is not None


def test_two_that_want_some_of_the_same_gpus_do_not_wait_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    busy, left, right = Line().hold(["4"], 1), Line(), Line()
    assert busy is not None
    assert left.hold(["4", "5"], 2) is None  # and is next on both
    assert right.hold(["5", "6"], 2) is None  # has nothing, so that others get at 6
    assert Line().hold(["6"], 1) is not None


def test_a_sweep_without_jobs_that_wait_is_in_nobodys_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that could not start all at once, and one that was asked to end while it waited."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    four, five, slots = Line().hold(["4"], 1), Line().hold(["5"], 1), Slots(gpus=["4", "5"], alone=True)
    assert four is not None and five is not None
    runner = Runner(slots, lambda _: setattr(runner, "asked", 1) if slots.line.next else None)
    runner.run([place(tmp_path / "0", "", needs=1)])
    os.close(four[1][0])
    assert Line().hold(["4"], 1) is not None


def test_a_job_keeps_its_gpus_for_as_long_as_it_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = place(tmp_path / "0", "open('0/go').read()", needs=1)
    os.mkfifo(folder / "go")
    free: list[bool] = []
    line = Line()

    def look(jobs: Mapping[Path, Job]) -> None:
        if jobs[folder].state == "running" and not free:
            free.append(line.hold(["4"], 1) is not None)
            (folder / "go").open("w").close()

    assert Runner(Slots(gpus=["4"], alone=True), look).run([folder])[folder].state == "done"
    assert free == [False]
    assert line.hold(["4"], 1) is not None
