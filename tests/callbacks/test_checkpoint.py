"""When checkpoints are written, and that a failed write leaves the old file."""

import concurrent.futures
import os
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from src.callbacks import checkpoint as callbacks_checkpoint
from src.callbacks.checkpoint import AtomicCheckpointIO, Checkpoint
from src.config.complete import complete
from src.errors import UserError
from src.measure.clock import Clock
from src.run import build, fit, quieten
from tests.support.limits import limited_files
from tests.support.stand_ins import StandInTrainer, stand_in_task
from tests.support.tiny_run import tiny_config


class FailsToPickle:
    """Raises when it is pickled, for a failure while a checkpoint is written."""

    def __init__(self, failure: BaseException) -> None:
        self.failure = failure

    def __reduce__(self) -> Any:
        raise self.failure


def written(checkpoint: dict[str, Any], path: Path | str) -> None:
    plugin = AtomicCheckpointIO()
    plugin.save_checkpoint(checkpoint, path)
    plugin.wait()


@pytest.mark.parametrize("failure", [RuntimeError("write failed"), KeyboardInterrupt()], ids=repr)
def test_a_failing_write_leaves_the_old_file_and_nothing_partial(tmp_path: Path, failure: BaseException) -> None:
    path = tmp_path / "checkpoints" / "last.ckpt"
    written({"state_dict": {"old": torch.ones(3)}}, path)
    before = path.read_bytes()
    expected = KeyboardInterrupt if isinstance(failure, KeyboardInterrupt) else UserError
    with pytest.raises(expected) as raised:
        written({"state_dict": {"new": torch.ones(3)}, "last": FailsToPickle(failure)}, path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]
    if expected is UserError:
        assert str(path) in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("earlier", [True, False])
def test_a_full_disk_leaves_the_old_file(tmp_path: Path, earlier: bool) -> None:
    path = tmp_path / "last.ckpt"
    if earlier:
        written({"number": 1}, path)
    before = path.read_bytes() if earlier else b""
    with limited_files(100_000), pytest.raises(UserError) as raised:
        written({"state_dict": {"new": torch.rand(100_000)}}, path)
    assert str(raised.value).startswith(f"cannot write {path} (File too large): ") and "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == [path] * earlier
    assert not earlier or path.read_bytes() == before


def test_a_written_checkpoint_replaces_the_old_one(tmp_path: Path) -> None:
    for number in (1, 2):
        written({"number": number}, str(tmp_path / "last.ckpt"))
    assert torch.load(tmp_path / "last.ckpt") == {"number": 2}


def test_training_goes_on_while_a_copy_of_the_weights_is_written(tmp_path: Path) -> None:
    plugin, path, weights, gate = AtomicCheckpointIO(), tmp_path / "last.ckpt", torch.ones(3), threading.Event()
    plugin._thread.submit(gate.wait)
    plugin.save_checkpoint({"state_dict": {"weights": weights}}, path)
    assert not path.exists()
    weights.add_(1)
    gate.set()
    assert plugin.load_checkpoint(path)["state_dict"]["weights"].equal(torch.ones(3))


def test_a_checkpoint_that_does_not_fit_twice_into_memory_is_written_at_once(tmp_path: Path) -> None:
    plugin = AtomicCheckpointIO(free_memory=lambda: 23)
    plugin.save_checkpoint({"state_dict": {"weights": torch.ones(3)}}, tmp_path / "last.ckpt")
    assert (tmp_path / "last.ckpt").exists() and not plugin._pending


def test_a_failed_write_ends_training_at_the_next_save(tmp_path: Path) -> None:
    plugin, failure = AtomicCheckpointIO(), FailsToPickle(RuntimeError("write failed"))
    plugin.save_checkpoint({"state_dict": failure}, tmp_path / "best.ckpt")
    concurrent.futures.wait(plugin._pending)
    with pytest.raises(UserError, match=r"cannot write \S+best\.ckpt"):
        plugin.save_checkpoint({"state_dict": {}}, tmp_path / "last.ckpt")


@pytest.mark.parametrize("fails", [False, True])
def test_the_last_evaluation_does_not_wait_for_the_last_write(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run does, and says when it failed."""
    quieten()
    job, evaluated, events = build(complete(tiny_config(tmp_path)), Clock()), threading.Event(), list[str]()
    write = callbacks_checkpoint.write

    def late(*arguments: Any) -> None:
        assert evaluated.wait(60)
        events.append("written")
        if fails:
            raise UserError("cannot write: the disk is full")
        write(*arguments)

    def evaluate(_: Any) -> None:
        events.append("evaluated")
        evaluated.set()

    monkeypatch.setattr(callbacks_checkpoint, "write", late)
    monkeypatch.setattr(job.task, "evaluate_last", evaluate)
    with pytest.raises(UserError, match="the disk is full") if fails else nullcontext():
        fit(job)
    job.task.teardown("fit")
    assert events == ["evaluated", "written"]
    assert (Path(job.config.output_dir) / "checkpoints" / "last.ckpt").exists() != fails


def test_lightning_refuses_a_checkpoint_with_code(tmp_path: Path) -> None:
    torch.save({"state_dict": {}, "more": Path("code")}, tmp_path / "last.ckpt")
    with pytest.raises(UserError, match=r"it names pathlib\.[\w.]+, which a checkpoint of numbers does not need"):
        AtomicCheckpointIO().load_checkpoint(tmp_path / "last.ckpt", weights_only=False)


@pytest.mark.parametrize(
    ("mode", "values", "best"),
    [
        ("max", [1.0, 3.0, 2.0, 3.0, 4.0], [0, 1, 4]),
        ("min", [3.0, 4.0, 2.0, 2.0, 1.0], [0, 2, 4]),
        ("max", [float("nan"), None, -5.0], [2]),
    ],
)
def test_best_is_the_best_evaluation_so_far(mode: str, values: list[float | None], best: list[int]) -> None:
    trainer, task, checkpoint = StandInTrainer(), stand_in_task(mode), Checkpoint("folder")
    for step, value in enumerate(values):
        trainer.step = step
        task.metrics = {} if value is None else {"quality": value}
        checkpoint.on_validation_end(trainer, task)
    assert trainer.saved == [("best.ckpt", step) for step in best]
    resumed = Checkpoint("folder")
    resumed.load_state_dict(checkpoint.state_dict())
    resumed.on_validation_end(trainer, task)
    assert len(trainer.saved) == len(best)  # an equal value is not better than the best before the resume


def test_a_resumed_run_copies_the_best_checkpoint_even_without_a_better_one(tmp_path: Path) -> None:
    before, here = tmp_path / "before", tmp_path / "here"
    before.mkdir()
    (before / "best.ckpt").write_bytes(b"weights")
    trainer, task, checkpoint = StandInTrainer(), stand_in_task(), Checkpoint(str(here))
    trainer.resumed_from = str(before / "last.ckpt")
    checkpoint.load_state_dict({"best": 3.0})
    checkpoint.on_train_start(trainer, task)
    task.metrics = {"quality": 2.0}
    checkpoint.on_validation_end(trainer, task)
    assert checkpoint.best_path == here / "best.ckpt" and (here / "best.ckpt").read_bytes() == b"weights"
    assert trainer.saved == [] and Checkpoint(str(here)).best_path is None


@pytest.mark.parametrize("evaluated_within", [False, True])
def test_best_and_last_of_one_step_are_written_once(evaluated_within: bool) -> None:
    """`best.ckpt` first: a run killed between the two goes on from before, and one whose training is done has both."""
    trainer, task, checkpoint = StandInTrainer(), stand_in_task(), Checkpoint("folder", every_n_epochs=2)
    task.metrics = {"quality": 1.0}
    trainer.step, trainer.epoch, trainer.last_batch = 8, 1, not evaluated_within
    trainer.stop = evaluated_within
    checkpoint.on_validation_end(trainer, task)
    assert trainer.saved == [("best.ckpt", 8), ("last.ckpt", 8)] * evaluated_within
    checkpoint.on_train_epoch_end(trainer, task)
    checkpoint.on_train_end(trainer, task)
    assert trainer.saved == [("best.ckpt", 8), ("last.ckpt", 8)]
    trainer.step, trainer.epoch, trainer.last_batch, trainer.stop = 12, 2, True, False
    task.metrics = {"quality": 2.0}
    checkpoint.on_validation_end(trainer, task)
    assert trainer.saved[2:] == [("best.ckpt", 12)]  # no `last.ckpt` follows this epoch
    checkpoint.on_train_end(trainer, task)
    assert trainer.saved[3:] == [("last.ckpt", 12)]


@pytest.mark.parametrize("has_links", [True, False])
def test_a_checkpoint_of_two_names_keeps_what_it_is_when_one_is_replaced(
    has_links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_links:
        monkeypatch.setattr(os, "link", unlinkable)
    plugin, last, best = AtomicCheckpointIO(), tmp_path / "last.ckpt", tmp_path / "best.ckpt"
    plugin.save_checkpoint(numbered(1), last, best)
    plugin.wait()
    assert last.samefile(best) == has_links
    plugin.save_checkpoint(numbered(2), last)
    assert [plugin.load_checkpoint(path)["state_dict"] for path in (last, best)] == [{"number": 2}, {"number": 1}]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best.ckpt", "last.ckpt"]


def test_the_best_checkpoint_stays_where_the_last_one_could_not_be_written(tmp_path: Path) -> None:
    plugin, last, best = AtomicCheckpointIO(), tmp_path / "last.ckpt", tmp_path / "best.ckpt"
    plugin.save_checkpoint(numbered(1), last, best)
    plugin.save_checkpoint({"state_dict": FailsToPickle(RuntimeError("write failed"))}, last, best)
    with pytest.raises(UserError, match="cannot write"):
        plugin.wait()
    assert plugin.load_checkpoint(best) == numbered(1)


def numbered(number: int) -> dict[str, Any]:
    return {"state_dict": {"number": torch.tensor(number)}}


def unlinkable(*_: Any) -> None:
    raise OSError("no links")


def train(checkpoint: Checkpoint, epochs: int, steps: int, stop_at: int | None = None) -> list[tuple[str, int]]:
    """Returns the events (saved name or 'evaluated', step) of a run; `should_stop` is set at step `stop_at`."""
    trainer, task = StandInTrainer(), stand_in_task()
    for epoch in range(epochs):
        trainer.epoch = epoch
        for step in range(steps):
            trainer.step += 1
            trainer.stop = trainer.step == stop_at
            trainer.last_batch = step == steps - 1
            checkpoint.on_train_batch_end(trainer, task, None, None, step)
            if trainer.stop:
                break
        trainer.saved.append(("evaluated", trainer.step))
        checkpoint.on_train_epoch_end(trainer, task)
        if trainer.stop:
            break
    checkpoint.on_train_end(trainer, task)
    return [(name.removesuffix(".ckpt"), step) for name, step in trainer.saved]


def test_last_is_written_every_n_epochs_and_at_the_end() -> None:
    saved = train(Checkpoint("folder", every_n_epochs=2), epochs=3, steps=2)
    assert saved == [("evaluated", 2), ("evaluated", 4), ("last", 4), ("evaluated", 6), ("last", 6)]


def test_last_is_written_every_n_steps_but_after_an_epochs_last_step_only_after_its_evaluation() -> None:
    saved = train(Checkpoint("folder", every_n_epochs=9, every_n_steps=2), epochs=2, steps=4)
    assert saved == [("last", 2), ("evaluated", 4), ("last", 4), ("last", 6), ("evaluated", 8), ("last", 8)]


@pytest.mark.parametrize("evaluates", [False, True])
def test_last_waits_for_the_evaluation_that_follows_its_step(evaluates: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("src.callbacks.checkpoint.is_evaluated_next", lambda trainer: evaluates)
    trainer, task, checkpoint = StandInTrainer(), stand_in_task(), Checkpoint("folder", every_n_steps=2)
    trainer.step = 2
    checkpoint.on_train_batch_end(trainer, task, None, None, 1)
    assert trainer.saved == [("last.ckpt", 2)] * (not evaluates)
    checkpoint.on_validation_end(trainer, task)
    assert trainer.saved == [("last.ckpt", 2)]


def test_a_stop_within_an_epoch_saves_before_the_epoch_counts_as_done() -> None:
    saved = train(Checkpoint("folder"), epochs=2, steps=4, stop_at=6)
    assert saved == [("evaluated", 4), ("last", 4), ("last", 6), ("evaluated", 6)]


def test_saving_counts_as_the_checkpoint_phase() -> None:
    task = stand_in_task()
    Checkpoint("folder").on_train_end(StandInTrainer(), task)
    assert task.clock.totals_s["checkpoint"] > 0
