"""Kept copies of weights are what a cast would give, whatever changes the weights between two steps."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from src.gpu import weight_copies
from src.gpu.weight_copies import WeightCopies

HALF = torch.float16


def weight() -> nn.Parameter:
    return nn.Parameter(torch.randn(8, 16, generator=torch.Generator().manual_seed(0)))


def of(*weights: Tensor, dtype: torch.dtype = HALF, place: Callable[[Tensor], Tensor] = lambda x: x) -> list[Tensor]:
    """Returns the copies that a forward pass reads, in memory of `place`."""

    def make() -> tuple[list[Tensor], list[Tensor]]:
        targets = [place(torch.empty_like(weight, dtype=dtype)) for weight in weights]
        return targets, targets

    return weight_copies.cast(weights, dtype, make)


def test_copies_are_kept_while_they_are_active() -> None:
    first, second, copies = weight(), weight(), WeightCopies()
    assert of(first)[0] is not of(first)[0] and not weight_copies.kept()
    with copies.active():
        ours = of(first, second)
        assert of(first, second) is ours
        assert torch.equal(ours[0], first.to(HALF))
        assert weight_copies.kept() == {first.data_ptr(): ours[0], second.data_ptr(): ours[1]}
    assert of(first, second) is not ours and not weight_copies.kept()
    with copies.active():
        assert of(first, second) is ours


def test_weights_that_were_changed_in_place_are_copied_again() -> None:
    parameter, copies = weight(), WeightCopies()
    with copies.active():
        (ours,) = of(parameter)
    ours.zero_()
    copies.refresh()
    assert not ours.any()  # nothing has changed
    with torch.no_grad():
        parameter.mul_(2)
    copies.refresh()
    assert torch.equal(ours, parameter.to(HALF))
    nn.Module.load_state_dict(module := nn.ParameterList([parameter]), {"0": torch.ones(8, 16)})
    copies.refresh()
    assert torch.equal(ours, torch.ones(8, 16, dtype=HALF)) and module[0] is parameter


def test_weights_that_have_moved_have_new_copies() -> None:
    parameter = weight()
    with WeightCopies().active():
        (before,) = of(parameter)
        parameter.data = parameter.data * 3
        (after,) = of(parameter)
        assert after is not before and torch.equal(after, parameter.to(HALF))
        assert weight_copies.kept() == {parameter.data_ptr(): after}


def test_copies_that_no_kernel_can_write_are_new_each_time() -> None:
    parameter = weight()
    cases = [
        {"dtype": torch.bfloat16},
        {"place": lambda x: x.T.contiguous().T},
        {"place": lambda x: torch.zeros(129, dtype=HALF)[1:].view(8, 16)},
    ]
    for options in cases:
        with WeightCopies().active():
            of(weight())  # of the first dtype
            ours = of(parameter, **options)  # type: ignore[arg-type]
            assert of(parameter, **options) is not ours and len(weight_copies.kept()) == 1  # type: ignore[arg-type]
            torch.testing.assert_close(ours[0].float(), parameter.detach(), rtol=1e-2, atol=1e-2)
