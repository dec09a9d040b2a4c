"""Ends a run on Ctrl-C, SIGTERM and the like: after a step, all ranks after the same one, with a checkpoint.

Lightning's own way ends each rank wherever the signal finds it and leaves no checkpoint.
"""

import math
import os
import re
import signal
import sys
import threading
import time
from contextlib import suppress
from importlib.metadata import version
from types import FrameType
from typing import Any

import pytorch_lightning as pl
import torch
from torch import distributed

from src.callbacks.checkpoint import is_evaluated_next
from src.errors import UserError
from src.launch.failures import cause_of
from src.launch.watchdog import Watchdog
from src.system.group import give_up, rank, started_by
from src.system.signals import ending_signals
from src.training.task import Task

OF_SCHEDULERS = (signal.SIGUSR1, signal.SIGUSR2)
ASKED_EVERY_S = 1.0
SAME_S = 1.0  # a terminal and a launcher may each send the same signal
MOST_STEPS = 1000  # between two votes
WRITING = b"\nending: the record of this run is being written; SIGKILL ends it without\n"
LOST = re.compile(r"connection (closed|reset) by peer|remote process exited", re.IGNORECASE)  # of gloo and NCCL
TRIED = ("2.6.",)  # versions of Lightning whose signal handling is known


class Interrupted(SystemExit):
    """Raised when a signal ends the run; exits with the shell's code for the signal."""

    def __init__(self, signum: int, when: str) -> None:
        super().__init__(128 + signum)
        self.message = f"{signal.Signals(signum).name} {when}"

    def __str__(self) -> str:
        return self.message


class RankLost(SystemExit):
    """Raised where another rank has ended, which knows why."""

    def __init__(self) -> None:
        super().__init__(1)

    def __str__(self) -> str:
        return "another rank, or its machine, is gone; its own output says why"


class Ending:
    """Handles the signals that ask a run to end, from its start to its record; a context manager.

    During training the first signal ends the run after the current step, with a checkpoint of that step; after a step
    with an evaluation, with a checkpoint after that. A second signal, and one outside of training, raises
    `Interrupted` at once. After that, and after `hold`, signals do nothing until the record is written. A handler that
    another program had for SIGUSR1 or SIGUSR2, as submitit's that requeues its job, is called once it is.
    """

    def __init__(self) -> None:
        self.asked: int | None = None
        self.interrupted: Interrupted | None = None  # raised by a signal: errors that follow from it do not count
        self.with_others = False  # every rank ends where this one does, and answers it meanwhile
        self._asked_s = -math.inf
        self._waits = False  # training goes on: `asked` is read before the next step
        self._stops = False  # the run ends after the step that is under way
        self._held = False  # the run has ended, its record has not been written yet
        self._before: dict[int, Any] = {}
        self._watchdog: Watchdog | None = None
        self._question: Question | None = None

    def __enter__(self) -> "Ending":
        if threading.current_thread() is threading.main_thread():  # others may not
            self._before = {number: signal.signal(number, self._signalled) for number in ending_signals()}
            if started_by() is not None:
                self._watchdog = Watchdog()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._watchdog is not None:
            self._watchdog.close()
        if self.asked is not None and self.asked in OF_SCHEDULERS and callable(self._before[self.asked]):
            signal.raise_signal(self.asked)

    def follow(self, trainer: pl.Trainer, task: Task) -> None:
        """Has the ranks vote before each batch whether the run ends; it then ends after a whole step."""
        replace_lightnings_signals(trainer)
        callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
        callbacks.insert(0, StepsOfEnding(self))
        task.after_step = self._after_step

    def before_step(self, trainer: pl.Trainer, task: Task) -> None:
        """Votes with the other ranks. Raises UserError where the loss of any rank has diverged."""
        self._agree(trainer, diverged=task.diverged is not None)
        if self._question is not None and self._question.diverged:
            raise UserError(task.diverged or "the loss of another rank is infinite or NaN; lower hp.lr")
        self._stops = self.agreed
        trainer.should_stop = trainer.should_stop or self._stops  # the checkpoint callback saves after the batch

    def _after_step(self, trainer: pl.Trainer) -> None:
        if not self._stops or is_evaluated_next(trainer):  # that precedes its checkpoint
            return
        if not trainer.is_last_batch:
            self._raise(trainer)
        if trainer.check_val_every_n_epoch is None:
            trainer.should_stop = False  # with it Lightning would evaluate where an undisturbed run does not

    def after_epoch(self, trainer: pl.Trainer) -> None:
        """Ends training after an epoch in whose last step the run was asked to end."""
        trainer.should_stop = trainer.should_stop or self._stops

    def after_training(self, trainer: pl.Trainer) -> None:
        """Raises `Interrupted` if any rank was asked to end; from now on a signal does so at once."""
        self._waits = False
        self._agree(trainer, now=True)
        if self.agreed:
            self._raise(trainer)

    def cause_of(self, raised: BaseException) -> BaseException:
        """Returns what ended the run: the signal or the end of another rank, where `raised` followed from one."""
        asked = self.asked or (self._question.answer if self._question is not None else 0)
        if self.interrupted is None and asked:
            if isinstance(raised, SystemExit):
                self.interrupted = Interrupted(asked, "in Lightning's own handler")
            elif is_of_lost_rank(raised):  # another rank was asked twice, and this one not yet
                self.interrupted = Interrupted(asked, "as another rank had ended at once")
        if self.interrupted is None and LOST.search(str(raised)):
            return RankLost()
        return self.interrupted or cause_of(raised)

    def hold(self) -> None:
        """Ignores signals from now on: the record is being written."""
        self._held = True

    def fail(self) -> None:
        """Records that this rank cannot go on: it must not wait for others, and must end even if the device hangs."""
        give_up()
        if self._watchdog is not None:
            self._watchdog.alert()

    @property
    def agreed(self) -> bool:
        """Whether the ranks have agreed to end because one of them was asked to."""
        return self._question is not None and self._question.answer > 0

    def _agree(self, trainer: pl.Trainer, now: bool = False, diverged: bool = False) -> None:
        if self._question is None:
            self._question = Question(trainer.world_size)
        self._question.ask(self.asked or 0, now, diverged)
        if self.agreed and self._watchdog is not None:
            self._watchdog.rest(SAME_S)  # saving may take long, unless a rank is asked again

    def _raise(self, trainer: pl.Trainer) -> None:
        assert self._question is not None
        self.hold()
        self.with_others = True
        self.interrupted = Interrupted(self._question.answer, f"after step {trainer.global_step}")
        raise self.interrupted

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        first, before_s, now_s = self.asked is None, self._asked_s, time.monotonic()
        if now_s - before_s < SAME_S:
            return
        self.asked, self._asked_s = number, now_s
        if self._held:
            if rank() == 0 and number == signal.SIGINT:  # somebody waits; launchers send others where a rank has failed
                with suppress(OSError):  # of a terminal that is gone
                    os.write(sys.stderr.fileno(), WRITING)  # print may be at work in the main thread
        elif not (first and self._waits):
            self.hold()
            self.interrupted = Interrupted(number, "before the next step" if self._waits else "outside of training")
            raise self.interrupted


class StepsOfEnding(pl.Callback):
    """Tells an Ending of every step, before any other callback."""

    def __init__(self, ending: Ending) -> None:
        self.ending = ending

    def on_train_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        self.ending._waits = True

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.ending.before_step(trainer, pl_module)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        self.ending.after_epoch(trainer)

    def on_exception(self, trainer: pl.Trainer, pl_module: Any, exception: BaseException) -> None:
        if isinstance(exception, Exception):
            self.ending.fail()


def is_of_lost_rank(error: BaseException) -> bool:
    """Returns whether a collective failed because another rank had ended; gloo has no type of error for it."""
    return isinstance(error, distributed.DistError) or (isinstance(error, RuntimeError) and "/gloo/" in str(error))


def replace_lightnings_signals(trainer: pl.Trainer) -> None:
    """Removes Lightning's signal handling, which broadcasts a tensor from wherever SIGTERM finds a rank.

    It also asks all devices at each step. Both are private to Lightning: other versions than TRIED keep them, and end
    at SIGTERM without a checkpoint.
    """
    if version("pytorch-lightning").startswith(TRIED):
        trainer._signal_connector.register_signal_handlers = lambda: None
        trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None


class Question:
    """A vote of all ranks, about once a second before a step, on the host: was any asked to end, has any diverged?"""

    def __init__(self, world_size: int) -> None:
        self.group = distributed.new_group(backend="gloo") if world_size > 1 else None
        self.answer = 0  # number of the signal
        self.diverged = False
        self.steps, self.every, self.last_s = 0, 1, time.monotonic()

    def ask(self, mine: int, now: bool = False, diverged: bool = False) -> None:
        """Sets `answer` and `diverged`: in a single process at every call, else about once a second or if `now`."""
        self.steps += 1
        if self.group is None:
            self.answer, self.diverged = mine, diverged
        elif (now or self.steps >= self.every) and not self.answer:
            time_s = time.monotonic()
            ballot = torch.tensor([float(mine), time_s - self.last_s, diverged], dtype=torch.float64)
            distributed.all_reduce(ballot, distributed.ReduceOp.MAX, group=self.group)
            signum, seconds, any_diverged = ballot.tolist()
            self.answer, self.diverged = int(signum), bool(any_diverged)
            about = int(self.steps * ASKED_EVERY_S / max(seconds, 1e-6))
            self.every = max(1, min(about, 2 * self.every, MOST_STEPS))
            self.steps, self.last_s = 0, time_s
