"""Who started this process, from the variables that torchrun and SLURM leave."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from src.errors import UserError
from src.system import group
from tests.support import ROOT

VARIABLES = ("TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_PROCID")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, (None, 0, 1)),
        ({"TORCHELASTIC_RUN_ID": "x", "RANK": "3", "WORLD_SIZE": "4"}, ("torchrun", 3, 4)),
        ({"SLURM_STEP_NUM_TASKS": "16", "SLURM_NTASKS": "16", "SLURM_PROCID": "9"}, ("slurm", 9, 16)),
        # The script of a job of several tasks itself, and a shell in such an allocation: no rank.
        ({"SLURM_NTASKS": "16", "SLURM_PROCID": "0"}, (None, 0, 1)),
        ({"SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "16", "SLURM_PROCID": "0"}, (None, 0, 1)),
        # torchrun within a task of SLURM.
        (
            {"TORCHELASTIC_RUN_ID": "x", "RANK": "5", "WORLD_SIZE": "8", "SLURM_STEP_NUM_TASKS": "2"},
            ("torchrun", 5, 8),
        ),
    ],
)
def test_a_rank_knows_its_group(
    variables: dict[str, str], expected: tuple[str | None, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert (group.started_by(), group.rank(), group.world_size()) == expected


def test_ranks_of_one_agent_began_when_it_did(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against what ps says of this process's parent; a process of its own begins now."""
    begin_s = time.time()
    asked = ["ps", "-o", "etimes=", "-p", str(os.getppid())]
    age_s = int(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)
    end_s = time.time()
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert end_s <= group.begun_s.__wrapped__() <= time.time()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    # The age, the boot and the start are whole seconds.
    assert begin_s - age_s - 3 <= group.begun_s.__wrapped__() <= end_s - age_s + 3
    assert group.begun_s.__wrapped__() == group.begun_s.__wrapped__()
    assert group.restarts() == 0
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    assert group.restarts() == 2


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"SLURM_STEP_NUM_TASKS": "x"}, "SLURM_STEP_NUM_TASKS=x is set in the environment, where a whole number is"),
        ({"RANK": ""}, "RANK= is set in the environment"),
        ({"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "WORLD_SIZE": "two"}, "WORLD_SIZE=two is set"),
        ({"TORCHELASTIC_RUN_ID": "x", "RANK": "0"}, "torchrun started this process, by its other variables, but WORLD"),
        ({"SLURM_STEP_NUM_TASKS": "2"}, "slurm started this process, by its other variables, but SLURM_PROCID is not"),
    ],
)
def test_a_variable_of_a_launcher_that_is_wrong_is_named(
    variables: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    group.check_variables()
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=f"^{message}"):
        group.check_variables()


@pytest.mark.parametrize("script", ["train.py", "predict.py", "prepare.py"])
@pytest.mark.slow
def test_every_entry_point_looks_at_them_first(script: str, tmp_path: Path) -> None:
    command = [sys.executable, script, f"output_root={tmp_path}"]
    environment = os.environ | {"SLURM_STEP_NUM_TASKS": "x"}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    expected = "error: SLURM_STEP_NUM_TASKS=x is set in the environment, where a whole number is expected; unset it\n"
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", expected)


def test_a_name_that_resolves_and_a_loopback_interface_that_works_are_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        for is_host in (True, False):
            group.check_rendezvous(*server.getsockname(), patience_s=0.0, is_host=is_host)
    group.check_loopback()


def test_rank_0_that_does_not_answer_is_not_waited_for_longer_than_asked() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
    with pytest.raises(group.Unmet, match=rf"does not answer at 127\.0\.0\.1, port {address[1]} \(Connection refused"):
        group.check_rendezvous(*address, patience_s=0.5, is_host=False)


def test_no_rank_repeats_the_random_numbers_of_another_rank_or_seed() -> None:
    seeds = dict[tuple[int, int], int]()
    for rank in (0, 1, 2, 4095):
        for seed in (0, 1, 2, 2**20 - 1):
            seeds[seed, rank] = group.seed_of_rank(seed, rank)
        assert 0 <= group.seed_of_rank(2**32 - 1, rank) < 2**32  # the largest that a run takes
    assert len(set(seeds.values())) == len(seeds)
    assert all(value == seed for (seed, rank), value in seeds.items() if rank == 0)


def test_a_rank_knows_its_agent_and_whether_it_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between torchrun and the rank may be a script of the user's, which need not be Python."""
    for name in (*VARIABLES, group.ANSWERED_FOR):
        monkeypatch.delenv(name, raising=False)
    assert group.agent() is None
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    assert group.agent() == os.getppid()
    monkeypatch.setattr(os, "getppid", lambda: 1)
    assert group.agent() == -1
    monkeypatch.setenv(group.ANSWERED_FOR, "12")
    assert group.agent() == 12
