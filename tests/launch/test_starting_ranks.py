"""Ranks as processes: what they are told, how they end together, and that none is left."""

import errno
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkProcess
from pathlib import Path

import psutil
import pytest
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from src import train
from src.launch import ranks
from src.launch.ranks import Asked, Ranks, RanksFailed, may_fork, uses_cuda
from tests.support.composing import composed


def meet() -> TCPStore:
    """Returns this rank's store, once all ranks have come."""
    store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    number = store.add("ranks", 1)
    store.set(f"rank {os.environ['RANK']}", str(os.getpid()))
    assert number <= int(os.environ["WORLD_SIZE"])
    store.wait([f"rank {rank}" for rank in range(int(os.environ["WORLD_SIZE"]))])
    return store


def note(folder: Path) -> None:
    """Writes what a rank sees."""
    meet()
    seen = {name: os.environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "REPRISE_ANSWERED_FOR")}
    handler = signal.getsignal(signal.SIGTERM)
    seen |= {"parent": str(os.getppid()), "ends": str(handler == signal.SIG_DFL)}
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(seen))


def test_ranks_meet_with_the_variables_of_torchrun_and_their_own_signals(tmp_path: Path) -> None:
    with Ranks(3, lambda: note(tmp_path)) as group:
        group.wait(patience_s=60)
    launcher = str(os.getpid())
    for rank in range(3):
        seen = json.loads((tmp_path / f"{rank}.json").read_text())
        numbers = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "3"}
        assert seen == {**numbers, "REPRISE_ANSWERED_FOR": launcher, "parent": launcher, "ends": "True"}
    assert "RANK" not in os.environ and not Path(group._folder).exists()


def fails(rank: int, code: int) -> None:
    """Ends one rank with an exit code; the others wait for ever."""
    meet()
    if int(os.environ["RANK"]) == rank:
        sys.exit(code)
    time.sleep(600)


def test_the_others_end_with_a_rank_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "NOTICING_S", 0.1)
    with Ranks(3, lambda: fails(1, 7)) as group, pytest.raises(RanksFailed) as failed:
        group.wait(patience_s=60)
    assert (failed.value.failure.rank, failed.value.failure.exitcode) == (1, 7)
    assert (
        failed.value.failure.error["message"] == "ended with exit code 7 before it could say why; its output is above"
    )
    assert [process.exitcode for process in group._processes] == [-signal.SIGTERM, 7, -signal.SIGTERM]


def ignores(rank: int) -> None:
    """Fails as `fails` does; the others do not listen."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    fails(rank, 1)


def test_ranks_that_do_not_listen_are_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "NOTICING_S", 0.1)
    monkeypatch.setattr(ranks, "ENDING_S", 0.1)
    with Ranks(2, lambda: ignores(0)) as group, pytest.raises(RanksFailed) as failed:
        group.wait(patience_s=60)
    assert failed.value.failure.rank == 0
    assert [process.exitcode for process in group._processes] == [1, -signal.SIGKILL]


def asks(signum: int) -> None:
    """Has the launcher asked to end, and ends when that asks."""
    meet()
    signal.signal(signum, lambda *_: sys.exit(0))
    if os.environ["RANK"] == "1":
        os.kill(os.getppid(), signum)
    time.sleep(600)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_to_the_launcher_is_passed_on_and_waited_for(signum: int) -> None:
    before = signal.getsignal(signum)
    with Ranks(2, lambda: asks(signum)) as group, pytest.raises(Asked) as asked:
        group.wait(patience_s=60)
    assert asked.value.signum == signum
    assert [process.exitcode for process in group._processes] == [0, 0]
    assert signal.getsignal(signum) == before


def test_no_rank_is_left_behind_an_error_of_the_launcher() -> None:
    with pytest.raises(ArithmeticError), Ranks(2, lambda: time.sleep(600)) as group:
        raise ArithmeticError
    assert [process.exitcode for process in group._processes] == [-signal.SIGKILL] * 2
    assert not [child for child in psutil.Process().children() if child.pid in {p.pid for p in group._processes}]


def test_no_rank_is_left_where_another_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = ForkProcess.start, list[ForkProcess]()

    def starts_one(process: ForkProcess) -> None:
        if started:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        start(process)
        started.append(process)

    monkeypatch.setattr(ForkProcess, "start", starts_one)
    before = signal.getsignal(signal.SIGTERM)
    group = Ranks(2, lambda: time.sleep(600))
    with pytest.raises(BlockingIOError), group:
        pass
    assert started[0].exitcode == -signal.SIGKILL and signal.getsignal(signal.SIGTERM) == before
    assert not group._folder.exists()


def test_only_a_command_that_has_computed_nothing_may_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REPRISE_PLAIN_START", raising=False)
    monkeypatch.setattr(ranks, "_has_computed", False)
    assert not may_fork()  # pytest
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "/somewhere/train.py", raising=False)
    assert may_fork()
    with monkeypatch.context() as plainly:
        plainly.setenv("REPRISE_PLAIN_START", "1")
        assert not may_fork()
    ranks.has_computed()
    assert not may_fork()


def test_no_cuda_is_noticed_where_none_was_begun() -> None:
    assert not uses_cuda()


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="it would begin CUDA in this process")
def test_without_a_driver_no_context_is_made() -> None:
    ranks.make_context(0)
    assert not uses_cuda()


@pytest.mark.parametrize("is_pending", [False, True])
def test_cuda_begins_beside_the_imports_unless_kernels_are_compiled_in_forks(
    is_pending: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = list[str]()

    @contextmanager
    def importing() -> Iterator[None]:
        order.append("imports")
        yield

    monkeypatch.setattr(train, "loading", importing)
    monkeypatch.setattr(train, "has_pending_kernels", lambda config: is_pending)
    monkeypatch.setattr(train, "begin_kernels", lambda config: order.append("kernels"))
    monkeypatch.setattr(train, "begin_cuda", lambda number: order.append("cuda"))
    monkeypatch.setattr(train.precompile, "hash_triton_ahead", lambda: order.append("hash"))
    monkeypatch.setattr(train, "has_computed", lambda: pytest.fail("trained"))  # the end of the test
    config = composed("train", "model=mobilenet_v1", "hardware=h200")
    with pytest.raises(pytest.fail.Exception, match="trained"):
        train.train_here_or_on_ranks(config)
    expected = ["imports", "kernels", "cuda", "hash"] if is_pending else ["cuda", "imports", "hash"]
    assert order == expected
