"""A training step with generated molecules: gradients of both uses of the network are added together."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from src.gpu import triton_helpers
from src.gpu.replace import Kernels
from src.models.moflow import task as moflow_task
from src.models.moflow.generated_molecules import GeneratedMolecules
from src.models.moflow.task import MoFlowTask
from src.training.tables import is_dense
from tests.support.tiny_moflow import make_molecules, make_network


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Tensor, Tensor]]:
    """Returns a list that fills with pairs of gradients that are added together."""
    pairs = list[tuple[Tensor, Tensor]]()
    add: Any = torch._foreach_add  # pyright: ignore[reportPrivateImportUsage]
    monkeypatch.setattr(torch, "_foreach_add", lambda a, b: (pairs.extend(zip(a, b, strict=True)), add(a, b))[1])
    return pairs


def step(kernels: Kernels) -> dict[str, Tensor]:
    """Returns the loss and the gradients of a training step in float32."""
    network = make_network(kernels=kernels, logdet="exact", padding="encoded", num_atom_flows=2).float().train()
    with torch.no_grad():
        for name, parameter in network.named_parameters():  # backwards a step divides by up to exp of their outputs
            parameter.mul_(0.3 if "coupling.convs" in name or "linears" in name else 1)
    task = MoFlowTask(network, torch.optim.Adam, generated_molecules=GeneratedMolecules(molecules=6))
    task.register_buffer("most_bonds", torch.tensor([0.0, 4.0, 1.0]), persistent=False)
    torch.manual_seed(1)
    loss = task.loss(make_molecules(5))["loss"]
    loss.backward()
    gradients = {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
    assert len(gradients) == len(list(network.parameters()))
    return {"loss": loss.detach(), **gradients}


@pytest.mark.parametrize("kernels", ["auto", "off"])
def test_the_gradients_are_those_of_one_use(
    kernels: Kernels, added: list[tuple[Tensor, Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By kernels, whose pairs of gradients a multi-tensor kernel takes: dense, in one layout."""
    if kernels == "auto":
        monkeypatch.setattr(triton_helpers, "devices", {"cuda", "cpu"})
    together = step(kernels)
    # All but the loss and the prior's log-variance, which one use reads; the padding is a third one of two ActNorms.
    assert len(added) == len(together) - 2 + 2 * 2
    if kernels == "auto":
        assert all(is_dense(one) and one.stride() == other.stride() for one, other in added)
    added.clear()
    monkeypatch.setattr(moflow_task, "separate_uses", None)  # as where several ranks are
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    assert_close(together, step(kernels), rtol=1e-4, atol=1e-5)
    assert not added
