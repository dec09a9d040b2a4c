"""Who started this process, from the variables that torchrun and SLURM leave."""

import os
import subprocess
import time

import pytest

from src.system import group

VARIABLES = ("TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_PROCID")


@pytest.mark.parametrize(
    ("given", "expected"),
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
    given: dict[str, str], expected: tuple[str | None, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert (group.started_by(), group.rank(), group.world_size()) == expected


def test_ranks_of_one_agent_began_when_it_did(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against what ps says of this process's parent; a process of its own begins now."""
    asked = ["ps", "-o", "etimes=", "-p", str(os.getppid())]
    agent_s = time.time() - int(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert abs(group.begun_s.__wrapped__() - time.time()) < 1
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    assert abs(group.begun_s.__wrapped__() - agent_s) <= 3  # of both, three times whole seconds
    assert group.begun_s.__wrapped__() == group.begun_s.__wrapped__()
    assert group.restarts() == 0
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    assert group.restarts() == 2


def test_no_rank_repeats_the_random_numbers_of_another_rank_or_seed() -> None:
    seeds = dict[tuple[int, int], int]()
    for rank in (0, 1, 2, 4095):
        for seed in (0, 1, 2, 2**20 - 1):
            seeds[seed, rank] = group.seed_of_rank(seed, rank)
        assert 0 <= group.seed_of_rank(2**32 - 1, rank) < 2**32  # the largest that a run takes
    assert len(set(seeds.values())) == len(seeds)
    assert all(value == seed for (seed, rank), value in seeds.items() if rank == 0)
