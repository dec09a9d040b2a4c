"""Metrics that are infinite or NaN end a run; tests/launch/test_divergence.py has losses and weights of whole runs."""

import math

import pytest

from src.callbacks.divergence import Divergence
from src.errors import UserError
from tests.support.stand_ins import StandInTrainer, stand_in_task


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_metric_that_is_not_finite_ends_the_run(value: float) -> None:
    trainer, task = StandInTrainer(), stand_in_task()
    task.metrics = {"good": 1e38}
    Divergence().on_validation_end(trainer, task)
    task.metrics["bad"] = value
    with pytest.raises(UserError, match=r"the metric bad is infinite or NaN at step 0"):
        Divergence().on_validation_end(trainer, task)
