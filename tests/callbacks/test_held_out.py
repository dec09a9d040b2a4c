"""Runs that hold nothing out: refused before training where they evaluate, trained where they do not."""

from pathlib import Path

import pytest

from src.config.complete import complete
from src.errors import UserError
from src.measure.clock import Clock
from src.run import build, fit, quieten
from tests.support.tiny_se3 import tiny_se3

NONE = "fit.final_evaluation=false", "fit.eval_every_n_epochs=null"


def trained_steps(home: Path, *overrides: str) -> int:
    quieten()
    steps = 0

    def count(*_: object) -> None:
        nonlocal steps
        steps += 1

    job = build(complete(tiny_se3(home, "fit.max_steps=1", *overrides)), Clock())
    job.task.after_step = count
    try:
        fit(job)
    except UserError:
        assert not steps
        raise
    return steps


def test_a_run_with_nothing_to_evaluate_ends_before_training(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"molecule_file has 0 molecules in its split val: hold out one or more"
    ) as caught:
        trained_steps(tmp_path, "datamodule.source.val_share=0")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("overrides", [("datamodule.source.val_share=0", *NONE), ("datamodule.source.test_share=0",)])
def test_a_split_that_is_not_needed_may_be_empty(overrides: tuple[str, ...], tmp_path: Path) -> None:
    assert trained_steps(tmp_path, *overrides) == 1
