"""Optimisers' kernels on a GPU write the half-precision copies of weights that are kept from one step to the next."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from src.gpu.cuda_graphs import Graphed
from src.gpu.weight_copies import WeightCopies, cast
from src.training.adagrad import Adagrad
from src.training.update_kernels import use_kernels

pytestmark = pytest.mark.gpu
KINDS = {
    "AdamW": partial(torch.optim.AdamW, fused=True, capturable=True),
    "SGD": partial(torch.optim.SGD, fused=True),
    "Adagrad": partial(Adagrad, capturable=True),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_replayed_steps_write_kept_copies(kind: str, dtype: torch.dtype) -> None:
    """The graph casts nothing; weights changed in place between replays are copied again before the next."""
    parameter = nn.Parameter(torch.randn(512, 768, device="cuda"))
    optimizer: Any = KINDS[kind]([parameter], lr=0.01)
    use_kernels(optimizer, "auto")
    copies, casts, kept = WeightCopies(), list[int](), torch.empty(512, 768, device="cuda", dtype=dtype)

    def step(factor: Tensor) -> Tensor:
        def make() -> tuple[Tensor, list[Tensor]]:
            casts.append(0)
            return kept, [kept]

        seen = cast([parameter], dtype, make).clone()
        parameter.grad = seen.float().sin() * factor
        optimizer.step()
        parameter.grad = None
        return seen

    run = Graphed(step, graph=True, warmup=2)
    for number in range(8):
        if number in (1, 5):
            with torch.no_grad():
                parameter.mul_(1.5)
        copies.refresh()
        expected = parameter.detach().to(dtype)
        with copies.active():
            seen = run(torch.tensor(number - 2.5, device="cuda"))
        assert torch.equal(seen, expected) and torch.equal(kept, parameter.detach().to(dtype))
    assert len(casts) == 1
