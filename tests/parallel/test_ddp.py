"""Two gloo processes on the CPU against one, over the same global batches."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from src.datamodules.molecules.encoded import MolecularData
from src.datamodules.molecules.smiles_file import load
from src.report.record import read_record
from tests.support import ROOT
from tests.support.ddp_ranks import GLOBAL_BATCH, run
from tests.support.tiny_run import tiny_overrides, write_smiles

TWO = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
EPOCHS, HELD_OUT = 2, 8
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ddp")


@pytest.fixture(scope="module")
def molecules(home: Path) -> MolecularData:
    """The tiny run's molecules, prepared for all tests here."""
    file = write_smiles(home / "my.smiles")
    return load(home / "data" / "smiles_file", file=file, workers=1, rare_below=1, split="random")


@pytest.fixture(scope="module")
def ranks(home: Path, molecules: MolecularData) -> list[dict[str, Any]]:
    """What `ddp_ranks.run` returned in each of two processes."""
    command = [*TWO, "-m", "tests.support.ddp_ranks", str(home)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return [torch.load(home / f"rank{rank}.pt") for rank in (0, 1)]


@pytest.fixture(scope="module")
def alone(home: Path, ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """What one process returned for the same global batches."""
    (home / "outputs" / "moflow" / "run").rename(home / "two")
    return run(home, 1)


def test_every_rank_has_the_same_numbers(ranks: list[dict[str, Any]]) -> None:
    first, second = ranks
    for kind in ("actnorm", "state"):
        assert first[kind].keys() == second[kind].keys()
        assert all(torch.equal(first[kind][name], second[kind][name]) for name in first[kind])
    assert first["losses"] != second["losses"]


def test_actnorm_is_initialised_with_the_batch_of_all_ranks(ranks: list[dict[str, Any]], alone: dict[str, Any]) -> None:
    torch.testing.assert_close(ranks[0]["actnorm"], alone["actnorm"], rtol=1e-5, atol=1e-5)


def test_two_ranks_do_what_one_process_does(ranks: list[dict[str, Any]], alone: dict[str, Any]) -> None:
    """With the same noise and without batch statistics: the loss is the mean of the ranks', and so is the gradient."""
    losses = [(a + b) / 2 for a, b in zip(ranks[0]["losses"], ranks[1]["losses"], strict=True)]
    assert losses == pytest.approx(alone["losses"], rel=1e-5)
    assert losses[-1] < losses[0]
    torch.testing.assert_close(ranks[0]["state"], alone["state"], rtol=1e-4, atol=1e-5)


def test_each_rank_trains_on_its_own_half_of_the_global_batch(
    ranks: list[dict[str, Any]], alone: dict[str, Any]
) -> None:
    for one, first, second in zip(alone["trained"], *(rank["trained"] for rank in ranks), strict=True):
        assert len(first) == len(second) == GLOBAL_BATCH // 2
        assert torch.equal(torch.cat([first, second]), one)


def test_held_out_molecules_are_seen_once_by_all_ranks_together(
    ranks: list[dict[str, Any]], alone: dict[str, Any], molecules: MolecularData, home: Path
) -> None:
    expected = sorted(molecules.nodes[molecules.valid_index].tolist() * EPOCHS)
    assert len(expected) == HELD_OUT * EPOCHS
    assert sorted(row for rank in ranks for batch in rank["held_out"] for row in batch.tolist()) == expected
    one, two = (read_record(folder).history for folder in (home / "outputs" / "moflow" / "run", home / "two"))
    for name in ("val_bits_atom", "val_bits_bond"):
        figures = [[row[name] for row in rows if name in row] for rows in (one, two)]
        assert len(figures[0]) == EPOCHS
        assert figures[1] == pytest.approx(figures[0], rel=1e-5)


@pytest.mark.slow
def test_the_entry_point_under_torchrun_leaves_one_record_of_both_ranks(home: Path, molecules: MolecularData) -> None:
    folder = home / "entry"
    command = [
        *TWO,
        "train.py",
        *tiny_overrides(home),
        "trainer=1x2",
        f"output_dir={folder}",
        f"output_root={home / 'o'}",
    ]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("train done: moflow on smiles_file, cpu 1x2") == 1
    record = json.loads((folder / "result.json").read_text())
    steps = (len(molecules.nodes) - HELD_OUT) // GLOBAL_BATCH
    assert (record["status"], record["ranks"], record["samples"]) == ("done", 2, steps * GLOBAL_BATCH)
    for rate in ("p_whole", "p_train", "p_core"):
        spread = record["rates_over_ranks"][rate]
        assert 0 < spread["min"] <= spread["mean"] <= spread["max"]
        assert record[rate] == pytest.approx(2 * spread["mean"])
    exposed = record["communication"]["exposed_s"]
    assert 0 < exposed["min"] <= exposed["mean"] <= exposed["max"]
    assert 0 < record["communication"]["share"] < 1
    assert record["phases_s"]["communication"] > 0
    assert record["case"]["trainer"] == record["config"]["trainer"]["name"] == "1x2"
