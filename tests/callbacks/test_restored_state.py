"""What callbacks take from a checkpoint is of their kind before a run changes anything of its own."""

from pathlib import Path
from typing import Any

import pytest
import torch

from src.callbacks.history import packed, unpacked
from src.callbacks.legs import legs_of
from src.callbacks.rng import check, rng_state
from src.errors import UserError
from src.launch.restoring import restoring

ROWS = packed([{"step": 1, "time_s": 0.5, "loss": 2.0}, {"step": 2, "time_s": 1.0}])


@pytest.mark.parametrize(
    "changed",
    [
        {"step": torch.ones(2, 2)}, {"step": torch.ones(3)}, {"loss": torch.tensor([float("inf"), 1])},
        {"time_s": torch.tensor([float("nan"), 1])},
    ],
)  # fmt: skip
def test_a_history_of_another_kind_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"history|argument"):
        unpacked(ROWS | changed)
    with pytest.raises(ValueError, match="history does not say where"):
        unpacked({"loss": torch.ones(2)})


LEG = {"first_step": 1, "last_step": 8, "began": "2026-11-27", "wall_s": 1.5, "status": "killed", "samples": 64,
       "ranks": 1, "phases_s": {"compute": 1.0, "wall": 1.5}, "environment": {"cpu": "x"}}  # fmt: skip


def test_legs_of_a_run_are_taken() -> None:
    run, legs = legs_of({"run": "361a3bba", "legs": [LEG]})
    assert run == "361a3bba" and legs[0] == LEG | dict.fromkeys(("p_whole", "p_train", "p_core", "joules"))


@pytest.mark.parametrize(
    "changed",
    [
        {"samples": "64"}, {"wall_s": {"_target_": "os.system"}}, {"phases_s": {"x": 1.0}}, {"environment": None},
        {"status": "x"}, {"samples._target_": "os.system"}, {"phases_s": [1]},
    ],
)  # fmt: skip
def test_legs_of_another_kind_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"key|legs|phase"):
        legs_of({"run": "361a3bba", "legs": [LEG | changed]})
    with pytest.raises(ValueError, match="legs"):
        legs_of({"run": "../x", "legs": [LEG]})


@pytest.mark.parametrize(
    "changed", [{"python": (3, (1, 2), None)}, {"torch": torch.ones(3)}, {"numpy": ("x", torch.ones(3))}]
)
def test_generators_stay_as_they_are_where_a_state_is_not_theirs(changed: dict[str, Any]) -> None:
    state = rng_state(torch.device("cpu"))
    check(state)
    before = str(rng_state(torch.device("cpu")))
    with pytest.raises((ValueError, TypeError, RuntimeError)):
        check(state | changed)
    assert str(rng_state(torch.device("cpu"))) == before


def test_only_what_restoring_raises_is_said_to_be_of_the_checkpoint() -> None:
    with pytest.raises(KeyError), restoring(Path("x.ckpt")):
        raise KeyError("of a step")
    code = compile("def restore_callbacks():\n    raise KeyError('best')\n", "checkpoint_connector.py", "exec")
    names: dict[str, Any] = {}
    exec(code, names)
    told = r"x\.ckpt: its state does not fit this run \(KeyError: 'best'\)"
    with pytest.raises(UserError, match=told), restoring(Path("x.ckpt")):
        names["restore_callbacks"]()
    with pytest.raises(KeyError), restoring(None):
        names["restore_callbacks"]()
