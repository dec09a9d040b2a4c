"""MobileNetV1's fast modules in the place of its plain ones. Imports no Triton itself: a test of the contract asks."""

import torch
from torch import Tensor

from src.models.mobilenet_v1 import MobileNetV1, fast
from tests.support.kernel_differences import random
from tests.support.kernels_contract import KernelsContract


class TestReplacements(KernelsContract):
    replacements = fast.REPLACEMENTS

    def network(self) -> MobileNetV1:
        torch.manual_seed(0)
        return MobileNetV1(num_classes=5, width_multiplier=0.125, strides=[1, 1, 2, 1, 2, *9 * [1]])

    def loss(self, network: torch.nn.Module, dtype: torch.dtype) -> Tensor:
        return network(random(3, 3, 5, 7, seed=1).to(dtype)).square().mean()
