"""What a training takes from a checkpoint beside weights has the types of the trainer's own parts."""

from pathlib import Path
from typing import Any

import pytest
import torch

from src.errors import UserError
from src.training.state import check_like, check_optimizer

PATH = Path("x.ckpt")
KIND = {"total": {"ready": 0}, "is_last": False, "best": None, "share": 0.5, "loaders": [{"epoch": 0}], "any": {}}


@pytest.mark.parametrize(
    "value",
    [
        {}, {"total": {"ready": 8}}, {"best": 0.5}, {"best": 3}, {"best": torch.tensor(1.0)}, {"share": 1},
        {"loaders": []}, {"loaders": [{"epoch": 2}, {}]}, {"any": {"x": "y"}}, {"is_last": True},
    ],
)  # fmt: skip
def test_values_of_the_kind_are_taken(value: Any) -> None:
    check_like(value, KIND, "x.ckpt: part")


@pytest.mark.parametrize(
    "value",
    [
        [], "x", None, {"reset": 1}, {7: 1}, {"total": 1}, {"total": {"ready": "1"}}, {"total": {"ready": -1}},
        {"total": {"ready": 2**60}}, {"total": {"ready": True}}, {"total": {"ready": 1.5}}, {"total": {"reset": 1}},
        {"total": {"ready": None}}, {"is_last": 1}, {"is_last": "no"}, {"best": "x"}, {"best": torch.ones(2)},
        {"best": {}}, {"share": None}, {"share": "x"}, {"loaders": {}}, {"loaders": ["x"]}, {"any": 3},
        {"loaders": [{"epoch": {"_target_": "os.system"}}]}, {"total.ready": 1},
    ],
)  # fmt: skip
def test_others_are_refused(value: Any) -> None:
    with pytest.raises(UserError, match=r"^x\.ckpt: part"):
        check_like(value, KIND, "x.ckpt: part")


OPTIMIZERS = {
    torch.optim.SGD: {"momentum": 0.9}, torch.optim.AdamW: {}, torch.optim.Adagrad: {}, torch.optim.Adafactor: {},
    torch.optim.RMSprop: {}, torch.optim.NAdam: {}, torch.optim.ASGD: {}, torch.optim.RAdam: {}, torch.optim.Rprop: {},
}  # fmt: skip


def stepped(kind: Any, options: dict[str, Any]) -> torch.optim.Optimizer:
    """Returns an optimiser after a step."""
    layers = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 3))
    optimizer = kind(layers.parameters(), lr=0.1, **options)
    layers(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return optimizer


@pytest.mark.parametrize(("kind", "options"), OPTIMIZERS.items())
def test_the_state_of_an_optimizer_is_taken(kind: Any, options: dict[str, Any]) -> None:
    optimizer = stepped(kind, options)
    optimizer.load_state_dict(optimizer.state_dict())
    check_optimizer(optimizer, PATH)


@pytest.mark.parametrize(
    ("name", "value"),
    [("lr", "x"), ("lr", None), ("lr", [0.1]), ("betas", 0.9), ("betas", (0.9, "x")), ("new", "os.system"), ("eps", {}),
     ("lr", torch.ones(2)), ("fused", "x")],
)  # fmt: skip
def test_settings_of_an_optimizer_of_another_type_are_refused(name: str, value: Any) -> None:
    optimizer = stepped(torch.optim.AdamW, {})
    optimizer.param_groups[0][name] = value
    with pytest.raises(UserError, match=rf"^x\.ckpt: optimizer_states\.0\.{name} is"):
        check_optimizer(optimizer, PATH)


@pytest.mark.parametrize(
    "value", ["x", {}, torch.ones(5), torch.ones(2, 3).to_sparse(), torch.ones(2, 3).to(torch.complex64)]
)
def test_states_of_an_optimizer_of_another_shape_are_refused(value: Any) -> None:
    optimizer = stepped(torch.optim.AdamW, {})
    next(iter(optimizer.state.values()))["exp_avg"] = value
    with pytest.raises(UserError, match=r"^x\.ckpt: the optimiser's exp_avg is not its parameter's"):
        check_optimizer(optimizer, PATH)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adafactor])
def test_a_state_that_lacks_what_others_have_is_refused(kind: Any) -> None:
    optimizer = stepped(kind, {})
    name, _ = next(iter(optimizer.state.values())).popitem()
    with pytest.raises(UserError, match=rf"^x\.ckpt: the optimiser lacks '{name}' of a parameter"):
        check_optimizer(optimizer, PATH)
