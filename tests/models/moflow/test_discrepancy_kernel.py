"""The kernel of the discrepancy, in Triton's interpreter against plain torch in float64."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from src.gpu import triton_helpers
from src.models.moflow import fast
from src.models.moflow import generated_molecules as plain
from src.models.moflow.fast import discrepancy as by_kernel
from src.models.moflow.fast.discrepancy import discrepancy
from src.models.moflow.generated_molecules import SCALES, GeneratedMolecules
from src.models.moflow.task import MoFlowTask
from tests.support.tiny_moflow import make_network


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_helpers, "devices", {"cuda", "cpu"})
    for module in (plain, by_kernel):
        monkeypatch.setattr(module, "REAL", 6)


@pytest.mark.parametrize(("generated", "real", "counts"), [(7, 9, 5), (1, 5, 3), (5, 2, 4), (9, 530, 2)])
def test_values_and_gradients_are_those_of_plain_torch(generated: int, real: int, counts: int) -> None:
    """Also of a sample that is there twice, of one generated molecule, and of several blocks of real ones."""
    torch.manual_seed(0)
    x, y = torch.randn(generated, counts), 0.5 + 2 * torch.randn(real, counts)
    x[-1], y[-1] = x[0], x[0]
    results = []
    for function, dtype in ((discrepancy, torch.float32), (plain.discrepancy, torch.float64)):
        leaf = x.to(dtype).requires_grad_()
        value = function(leaf, y.to(dtype))
        results.append([part.double() for part in (value, *torch.autograd.grad(3 * value, leaf))])
    assert_close(*results, rtol=1e-4, atol=1e-5)


def test_others_than_float32_are_plain() -> None:
    x, y = torch.randn(4, 3).double().requires_grad_(), torch.randn(5, 3).double()
    assert torch.equal(discrepancy(x, y), plain.discrepancy(x, y))


def test_scales_are_a_geometric_sequence() -> None:
    ratios = np.array(SCALES[1:]) / SCALES[:-1]
    assert (ratios == ratios[0]).all()


@pytest.mark.parametrize(
    ("kernels", "is_fast"), [("auto", True), (["discrepancy"], True), (["conv"], False), ("off", False)]
)
def test_a_task_takes_it_by_name(kernels: str | list[str], is_fast: bool) -> None:
    task = MoFlowTask(make_network(), torch.optim.Adam, generated_molecules=GeneratedMolecules())
    task.accelerate(kernels)  # type: ignore[arg-type]
    assert task.generated_molecules is not None
    assert task.generated_molecules.fast_discrepancy is (None if kernels in (["conv"], "off") else discrepancy)
    assert fast.DISCREPANCY in task.replacements
