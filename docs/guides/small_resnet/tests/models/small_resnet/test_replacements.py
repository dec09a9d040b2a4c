"""The small ResNet's fast module. Imports no Triton itself: a test of the contract asks."""

import pytest
import torch
from src.models.small_resnet import fast
from src.models.small_resnet.network import Block, SmallResNet
from torch import Tensor, nn

from src.gpu.replace import replace_submodules
from src.gpu.triton_helpers import DTYPES
from tests.support.kernel_differences import random
from tests.support.kernels_contract import KernelsContract


def fast_block() -> Block:
    block = Block(4, 4, 1)
    replace_submodules(block, fast.REPLACEMENTS)
    return block


class TestReplacements(KernelsContract):
    replacements = fast.REPLACEMENTS

    def network(self) -> SmallResNet:
        torch.manual_seed(0)
        return SmallResNet(num_classes=5, widths=(8, 16))

    def loss(self, network: nn.Module, dtype: torch.dtype) -> Tensor:
        return network(random(3, 3, 6, 10, seed=1).to(dtype)).square().mean()

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_the_sum_has_the_bits_of_plain_torch(self, dtype: torch.dtype) -> None:
        """Its first and second gradients too, with infinity and NaN."""
        rounding = 2**-7 if dtype == torch.bfloat16 else 0.0  # Triton's interpreter rounds bfloat16 towards 0
        results = []
        for block in (Block(4, 4, 1), fast_block()):
            y, shortcut = (random(2, 4, 9, 20, seed=seed).to(dtype) for seed in (1, 2))
            y[0, 0, 0, :3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
            parts = y.requires_grad_(), shortcut.requires_grad_()
            first = torch.autograd.grad((block.add(*parts) + 1).square().sum(), parts)
            second = torch.autograd.grad((block.add(*parts) + 1).square().sum(), parts, create_graph=True)
            results.append((block.add(*parts), *first, *second, *torch.autograd.grad(second[0].sum(), parts)))
        torch.testing.assert_close(*results, rtol=rounding, atol=0, equal_nan=True)

    @pytest.mark.parametrize("other", [torch.channels_last, torch.float16], ids=str)
    def test_tensors_that_differ_are_added_in_plain_torch(
        self, other: torch.memory_format | torch.dtype, caplog: pytest.LogCaptureFixture
    ) -> None:
        block = fast_block()
        y, shortcut = random(2, 4, 9, 20, seed=1).float(), random(2, 4, 9, 20, seed=2).float()
        is_order = isinstance(other, torch.memory_format)
        shortcut = shortcut.contiguous(memory_format=other) if is_order else shortcut.to(other)
        assert torch.equal(block.add(y, shortcut), torch.relu(y + shortcut))
        assert len(caplog.messages) == 1 and "add does not support shortcut=" in caplog.text
