"""A run over its legs: the parts between a start or resume and what ended it. Each checkpoint holds those so far."""

import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytorch_lightning as pl
import torch

from src.callbacks.energy import Energy
from src.errors import UserError
from src.measure.clock import Clock
from src.measure.over_ranks import gather, sum_or_none
from src.measure.phases import PHASES
from src.measure.rates import ratio, whole_rates
from src.report.record import Leg, read_record
from src.report.typed import build
from src.training.task import Task

LEGS = "legs"  # a checkpoint's key: the run's identity and its legs
IDENTITY = re.compile(r"\w{1,64}")
RATES = ("p_whole", "p_train", "p_core")
SPENT = ("last_step", "status", "wall_s", "phases_s", "joules")  # of a leg to its end, which its record knows


class Legs(pl.Callback):
    """Keeps the identity of the run and the figures of its legs, in checkpoints and for the record.

    Args:
        environment: as in records, of this leg.
    """

    # Lightning times each hook of each callback at each step, empty ones too; a hook that is None costs nothing.
    on_train_batch_start = None  # type: ignore[assignment]
    on_train_batch_end = None  # type: ignore[assignment]

    def __init__(self, clock: Clock, environment: dict[str, Any]) -> None:
        self.run = uuid4().hex
        self.environment = environment
        self.before: list[dict[str, Any]] = []
        self._clock = clock
        self._began = datetime.fromtimestamp(time.time() - clock.wall_s(), UTC).isoformat()
        self._steps_before = 0

    def on_load_checkpoint(self, trainer: pl.Trainer, pl_module: Task, checkpoint: dict[str, Any]) -> None:
        self._steps_before = checkpoint["global_step"]
        state = checkpoint.get(LEGS)
        if isinstance(state, dict):
            self.run, legs = legs_of(state)
            self.before = with_ends(legs, self.run, Path(str(trainer.ckpt_path)))

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: Task, checkpoint: dict[str, Any]) -> None:
        clock = pl_module.clock
        if pl_module.device.type == "cuda":
            torch.cuda.synchronize()  # the weights are copied next, which waits as long
        spent = clock.spent()
        rates = whole_rates(clock.steps, spent.training_s, spent.training_phases_s["evaluation"])
        energy = next((c for c in trainer.callbacks if isinstance(c, Energy)), None)  # type: ignore[attr-defined]
        joules = energy.joules() if energy else None
        figures_of_rank = {**rates, "samples": float(sum(clock.steps.samples)), "joules": joules}
        figures = {name: sum_or_none(gather(value)) for name, value in figures_of_rank.items()}
        leg = self._leg(trainer, "killed", figures | {"phases_s": spent.totals_s | {"wall": clock.marked_s()}})
        checkpoint[LEGS] = {"run": self.run, "legs": [*self.before, leg | {"environment": self.environment}]}

    def total(self, trainer: pl.Trainer, figures: Mapping[str, Any], status: str) -> dict[str, Any]:
        """Returns the record's identity of the run, its legs, and the figures that are of all legs.

        Args:
            figures: of this leg, by their names in the record.
            status: of this leg.
        """
        energy = figures.get("energy") or {}
        last = self._leg(trainer, status, {**figures, "joules": energy.get("joules")})
        before = [leg | {"environment": differing(leg["environment"], self.environment)} for leg in self.before]
        fields = {"run": self.run, "legs": [*before, last], "e2e_time_s": last["wall_s"]}
        return fields | over(fields["legs"], energy.get("source")) if before else fields

    def _leg(self, trainer: pl.Trainer, status: str, figures: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "first_step": self._steps_before + 1,
            "last_step": trainer.global_step,
            "began": self._began,
            "wall_s": self._clock.wall_s(),
            "status": status,
            "samples": int(figures.get("samples") or 0),
            "ranks": trainer.world_size,
            **{name: figures.get(name) for name in (*RATES, "joules")},
            "phases_s": figures.get("phases_s") or {},
            "environment": None,
        }


def legs_of(state: Mapping[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    """Returns the run and the legs that a checkpoint tells. Raises ValueError where they are of another kind."""
    legs = [asdict(build(Leg, leg, optional=[f.name for f in fields(Leg)])) for leg in state["legs"]]
    is_run = IDENTITY.fullmatch(state["run"]) and all({*leg["phases_s"]} <= {*PHASES, "wall"} for leg in legs)
    if not is_run or any(leg["environment"] is None for leg in legs):
        raise ValueError("its legs are not those of a run")
    return state["run"], legs


def with_ends(legs: Sequence[Mapping[str, Any]], run: str, checkpoint: Path) -> list[dict[str, Any]]:
    """Returns the legs of a checkpoint as the record beside it says they ended; a leg without a record was killed.

    Samples and rates stay those at the checkpoint. Later legs of the record, which saved none, are added without any.
    """
    ended = [dict(leg) for leg in legs]
    with suppress(UserError):
        record = read_record(checkpoint.parent.parent)
        theirs = [asdict(leg) for leg in record.legs or ()]
        if record.run != run or [leg["began"] for leg in theirs[: len(ended)]] != [leg["began"] for leg in ended]:
            return ended
        environment = record.environment
        for i, leg in enumerate(theirs):
            if i < len(ended):
                ended[i] |= {name: leg[name] for name in SPENT}
            else:
                lost = {"samples": 0, **dict.fromkeys(RATES), "environment": environment | (leg["environment"] or {})}
                ended.append(leg | lost)
    return ended


def over(legs: Sequence[Mapping[str, Any]], source: str | None) -> dict[str, Any]:
    """Returns what adds up over legs: samples, wall time, phases and energy; and the rates of these samples.

    Args:
        source: of the energy.
    """
    samples = sum(leg["samples"] for leg in legs)
    joules = sum_or_none([leg["joules"] for leg in legs])
    names = dict.fromkeys(name for leg in legs for name in leg["phases_s"])
    phases = {name: sum(leg["phases_s"].get(name) or 0.0 for leg in legs) for name in names}
    energy = {"joules": joules, "samples_per_joule": samples / joules, "source": source} if joules else None
    return {
        "samples": samples,
        "e2e_time_s": sum(leg["wall_s"] for leg in legs),
        "phases_s": phases,
        "energy": energy,
        **{name: rate_over(legs, name) for name in RATES},
    }


def rate_over(legs: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """Returns the samples of all legs over the time they took at each leg's rate; None where one is not known."""
    trained = [leg for leg in legs if leg["samples"]]
    seconds = sum_or_none([leg["samples"] / leg[name] if leg[name] else None for leg in trained])
    return ratio(sum(leg["samples"] for leg in trained), seconds) if seconds else None


def differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what an environment had otherwise than another one."""
    return {key: value for key, value in before.items() if now.get(key) != value}
