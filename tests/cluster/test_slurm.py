"""Runs and sweeps on SLURM: two nodes, the time limit, a node that dies, ranks that cannot meet."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from src.report.record import read_record
from tests.support import ROOT
from tests.support.slurm import NODES, Slurm, free_ports, wait_until
from tests.support.started import provoked, run
from tests.support.sweep_ends import assert_ends_in_best_and_page, assert_goes_on
from tests.support.tiny_mobilenet import tiny_overrides

pytestmark = pytest.mark.cluster
TWO_NODES = "--nodes=2", "--ntasks-per-node=1", f"--chdir={ROOT}", "--requeue"

# As in docs/guides/launch.md.
AGAIN = """\
srun --kill-on-bad-exit=1 {}
code=$?
if [ $code -ne 0 ] && [ $code -ne 2 ] && [ ${{SLURM_RESTART_COUNT:-0}} -lt 5 ]; then scontrol requeue $SLURM_JOB_ID; fi
exit $code
"""


def train(home: Path, *overrides: str) -> list[str]:
    return [sys.executable, "train.py", *tiny_overrides(home), *overrides]


def check_same_training(one: Path, other: Path) -> None:
    """Of two homes: both runs are done, with the same losses and weights to the bit."""
    records = [read_record(home / "run") for home in (one, other)]
    assert [record.status for record in records] == ["done", "done"]
    assert records[0].ranks == records[1].ranks
    losses = [[(row["step"], row["loss"]) for row in record.history if "loss" in row] for record in records]
    assert losses[0] == losses[1] and len(losses[0]) == 4
    files = [home / "run" / "checkpoints" / "last.ckpt" for home in (one, other)]
    weights = [torch.load(file, weights_only=False)["state_dict"] for file in files]
    torch.testing.assert_close(*weights, rtol=0, atol=0)


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of a run on two ranks that nothing disturbed."""
    home = tmp_path_factory.mktemp("two_ranks")
    code, _, err = run(home, "trainer=1x2")
    assert code == 0, err
    return home


def test_srun_trains_on_two_nodes_with_two_ranks_each(slurm: Slurm, tmp_path: Path) -> None:
    code, _, err = run(tmp_path / "alone", "trainer=1x4")
    assert code == 0, err
    options = "--nodes=2", "--ntasks-per-node=2", "--kill-on-bad-exit=1"
    done = slurm.run("srun", *options, *train(tmp_path / "slurm", "trainer=2x2"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("train done: mobilenet_v1 on image_synthetic, cpu 2x2") == 1
    check_same_training(tmp_path / "alone", tmp_path / "slurm")
    overrides = read_record(tmp_path / "slurm" / "run").environment["overrides"]
    assert "trainer=2x2" in overrides


def test_a_time_limit_queues_a_job_again_which_goes_on(slurm: Slurm, two_ranks: Path, tmp_path: Path) -> None:
    """SLURM asks at some time before the limit."""
    waits = provoked(what="waits_in_its_first_start", step=6)
    command = shlex.join(train(tmp_path, "trainer=2x1", "resume=true", waits))
    job = slurm.submit(AGAIN.format(command), *TWO_NODES, "--time=1", "--signal=USR1@5")
    ended = slurm.wait(job)
    printed = slurm.printed(job)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1"), printed
    assert "resume=true: going on from" in printed
    check_same_training(two_ranks, tmp_path)
    first, last = read_record(tmp_path / "run").legs or []
    assert first.status == "interrupted" and 6 <= first.last_step < 8 and last.first_step == first.last_step + 1


def test_a_job_goes_on_after_the_death_of_a_node(slurm: Slurm, two_ranks: Path, tmp_path: Path) -> None:
    waits = provoked(what="'reports waits_in_its_first_start'", step=6, rank=1)
    every = "fit.checkpoint_every_n_steps=1"
    command = shlex.join(train(tmp_path, "trainer=2x1", "resume=true", every, waits))
    job = slurm.submit(AGAIN.format(command), *TWO_NODES)
    wait_until(lambda: "provoked at" in slurm.printed(job), f"step 6 of job {job}")
    slurm.kill_node(NODES[1])
    wait_until(lambda: slurm.state(job)["JobState"] != "RUNNING", f"the end of job {job} with its node")
    slurm.start_node(NODES[1])
    ended = slurm.wait(job)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1"), slurm.printed(job)
    check_same_training(two_ranks, tmp_path)
    legs = read_record(tmp_path / "run").legs or []
    assert [(leg.first_step, leg.last_step) for leg in legs] == [(1, 5), (6, 8)]


def test_ranks_that_cannot_meet_end_in_one_line(slurm: Slurm, tmp_path: Path) -> None:
    """Rank 1 looks for rank 0 where nobody is, and srun ends the other."""
    port, unused = free_ports(2)
    of_rank = f"export MASTER_PORT={port}; [ $SLURM_PROCID = 0 ] || export MASTER_PORT={unused}"
    apart = ["bash", "-c", f'{of_rank}; exec "$@"', "-"]
    options = "--nodes=2", "--ntasks-per-node=1", "--kill-on-bad-exit=1"
    done = slurm.run("srun", *options, *apart, *train(tmp_path, "trainer=2x1", "trainer.patience_s=2"))
    assert done.returncode != 0
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ") and "slurmstepd" not in line]
    assert errors[0] == (
        f"error: the ranks cannot meet: rank 0 does not answer at {NODES[0]}, port {unused} (Connection refused), for "
        "2 s (trainer.patience_s); set MASTER_ADDR on all nodes to an address of that host that they reach, or give "
        "torchrun --local-addr=ADDRESS"
    )
    assert errors[1:] in ([], ["error: this rank was asked to end while it waited for the others to start"])
    assert "Traceback" not in done.stderr and not (tmp_path / "run" / "checkpoints").exists()


def test_submitit_runs_the_jobs_of_a_sweep_once(slurm: Slurm, tmp_path: Path) -> None:
    of_submitit = "timeout_min=5", "cpus_per_task=2", "nodes=2", "tasks_per_node=1"
    sweep = [
        "-m", "hydra/launcher=submitit_slurm", *(f"hydra.launcher.{option}" for option in of_submitit),
        "hydra/sweeper=basic", f"hydra.sweep.dir={tmp_path / 'sweep'}", "trainer=2x1",
    ]  # fmt: skip

    def swept(*overrides: str) -> subprocess.CompletedProcess[str]:
        words = train(tmp_path, *sweep, *overrides)
        return slurm.run(*(word for word in words if word != f"output_dir={tmp_path / 'run'}"))

    done = swept("seed=1,2")
    assert done.returncode == 0, done.stderr
    assert_ends_in_best_and_page(done.stdout, tmp_path / "sweep")
    for number in (0, 1):
        record = read_record(tmp_path / "sweep" / str(number))
        assert (record.status, record.ranks, record.config["seed"]) == ("done", 2, number + 1)
    assert_goes_on(swept, tmp_path / "sweep")
