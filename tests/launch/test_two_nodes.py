"""One command for the ranks of one node; two nodes on one machine: two agents of torchrun that know an address only."""

import signal
import socket
from pathlib import Path

import pytest
import torch

from src.report.record import read_record
from tests.support.started import LONG, begin, ended, provoked, run


def run_on_two_nodes(home: Path, devices: int, *overrides: str) -> list[tuple[int, str, str]]:
    """Exit code and prints of both agents; killed ones have -9."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    agent = (
        "-m", "torch.distributed.run", "--nnodes=2", f"--nproc-per-node={devices}", "--rdzv-backend=c10d",
        f"--rdzv-endpoint=127.0.0.1:{port}", "--local-addr=127.0.0.1",
    )  # fmt: skip
    nodes = [begin(home, f"trainer=2x{devices}", *overrides, by=agent) for _ in range(2)]
    return [ended(node) for node in nodes]


def final_weights(home: Path) -> dict[str, torch.Tensor]:
    return torch.load(home / "run" / "checkpoints" / "last.ckpt", weights_only=False)["state_dict"]


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a run on two ranks of one node, and what it printed."""
    home = tmp_path_factory.mktemp("two_ranks")
    code, out, err = run(home, "trainer=1x2", "note='a note, with ${trainer.name}'")
    assert code == 0, err
    return home, out


@pytest.mark.slow
def test_one_command_trains_on_its_ranks_and_leaves_one_record(two_ranks: tuple[Path, str]) -> None:
    home, out = two_ranks
    assert out.count("train done: mobilenet_v1 on image_synthetic, cpu 1x2") == 1
    assert out.count("note: a note, with 1x2") == 1
    record = read_record(home / "run")
    assert (record.status, record.ranks, record.samples) == ("done", 2, 2 * 8 * 8)
    assert {"trainer=1x2", "note='a note, with ${trainer.name}'"} <= set(record.environment["overrides"])


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_two_nodes_train_as_one_with_as_many_ranks(devices: int, tmp_path: Path, two_ranks: tuple[Path, str]) -> None:
    alone, _ = two_ranks
    if devices == 2:
        alone = tmp_path / "one"
        code, _, err = run(alone, "trainer=1x4")
        assert code == 0, err
    for code, _, err in run_on_two_nodes(tmp_path / "two", devices):
        assert code == 0, err
    one, two = (read_record(home / "run") for home in (alone, tmp_path / "two"))
    assert one.ranks == two.ranks == 2 * devices and one.samples == two.samples
    losses = [[row["loss"] for row in record.history if "loss" in row] for record in (one, two)]
    assert losses[0] == losses[1] and len(losses[0]) == 4
    torch.testing.assert_close(final_weights(tmp_path / "two"), final_weights(alone), rtol=0, atol=0)


@pytest.mark.slow
def test_a_killed_agent_ends_both_nodes_with_a_checkpoint(tmp_path: Path) -> None:
    nodes = run_on_two_nodes(tmp_path, 1, LONG, provoked(what="kills_its_launcher", step=3, rank=1))
    assert sorted(code for code, _, _ in nodes) == [-signal.SIGKILL, 1]
    record = read_record(tmp_path / "run")
    step = torch.load(tmp_path / "run" / "checkpoints" / "last.ckpt", weights_only=False)["global_step"]
    assert record.status == "interrupted" and record.error is not None
    assert record.error.message == f"SIGTERM after step {step}"


@pytest.mark.slow
def test_each_rank_says_why_it_ended_where_nobody_answers_for_it(tmp_path: Path) -> None:
    nodes = run_on_two_nodes(tmp_path, 1, LONG, provoked(what="sees_a_nan", step=3, rank=1))
    said = [line for _, _, err in nodes for line in err.splitlines() if line.startswith("error:")]
    assert sorted(said) == [
        "error: rank 1: a loss is infinite or NaN",
        "error: the loss of another rank is infinite or NaN; lower hp.lr",
    ]


@pytest.mark.slow
def test_a_node_that_is_gone_ends_the_other_with_a_record(tmp_path: Path) -> None:
    nodes = run_on_two_nodes(tmp_path, 1, LONG, provoked(what="'kills_its_launcher dies'", step=3, rank=1))
    assert sorted(code for code, _, _ in nodes) == [-signal.SIGKILL, 1]
    record = read_record(tmp_path / "run")
    assert record.status == "failed" and record.error is not None
    assert (record.error.type, record.error.message) == (
        "RankLost", "another rank, or its machine, is gone; its own output says why"
    )  # fmt: skip
