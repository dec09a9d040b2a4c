"""Two nodes on one machine: two agents of torchrun that know an address only; test_ranks.py compares their training."""

import shlex
import signal
import socket
from pathlib import Path

import pytest
import torch

from src.report.record import read_record
from tests.support.started import LONG, begin, ended, provoked
from tests.support.tiny_mobilenet import tiny_overrides

pytestmark = pytest.mark.slow


AGENT = (
    "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--local-addr=127.0.0.1",
)  # fmt: skip


def run_on_two_nodes(home: Path, *overrides: str) -> list[tuple[int, str, str]]:
    """Exit code and prints of both agents; killed ones have -9."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"--rdzv-endpoint=127.0.0.1:{server.getsockname()[1]}"
    nodes = [begin(home, "trainer=2x1", *overrides, by=(*AGENT, endpoint)) for _ in range(2)]
    return [ended(node) for node in nodes]


def test_a_killed_agent_ends_both_nodes_with_a_checkpoint(tmp_path: Path) -> None:
    """And one tells how to go on, by the same torchrun."""
    ending = LONG, provoked(what="kills_its_launcher", step=3, rank=1)
    nodes = run_on_two_nodes(tmp_path, *ending)
    assert sorted(code for code, _, _ in nodes) == [-signal.SIGKILL, 1]
    record = read_record(tmp_path / "run")
    step = torch.load(tmp_path / "run" / "checkpoints" / "last.ckpt", weights_only=False)["global_step"]
    assert record.status == "interrupted" and record.error is not None
    assert record.error.message == f"SIGTERM after step {step}"
    assert record.go_on is not None and record.go_on.command is not None
    assert any(f": {record.go_on.command}\n" in out for _, out, _ in nodes)
    words = shlex.split(record.go_on.command)
    assert words[: len(AGENT) + 1] == ["python", *AGENT] and words[-1] == "resume=true"
    assert words[words.index("train.py") + 1 : -1] == [*tiny_overrides(tmp_path), "trainer=2x1", *ending]


def test_a_node_that_is_gone_ends_the_other_with_a_record(tmp_path: Path) -> None:
    nodes = run_on_two_nodes(tmp_path, LONG, provoked(what="'kills_its_launcher dies'", step=3, rank=1))
    assert sorted(code for code, _, _ in nodes) == [-signal.SIGKILL, 1]
    record = read_record(tmp_path / "run")
    assert record.status == "failed" and record.error is not None
    assert (record.error.type, record.error.message) == (
        "RankLost", "another rank, or its machine, is gone; its own output says why"
    )  # fmt: skip
