"""MobileNetV1's fast modules in the place of its plain ones. Imports no Triton itself: a test of the contract asks."""

import torch
from torch import Tensor

from src.models.mobilenet_v1 import MobileNetV1, fast
from tests.support.kernel_differences import random
from tests.support.kernels_contract import KernelsContract


class TestReplacements(KernelsContract):
    replacements = fast.REPLACEMENTS

    def network(self) -> MobileNetV1:
        """Returns one of four pairs, with and without a stride: each layer takes the interpreter half a second."""
        torch.manual_seed(0)
        network = MobileNetV1(num_classes=5, width_multiplier=0.125, strides=[1, 1, 2, 1, 2, *9 * [1]])
        network.blocks = torch.nn.Sequential(*list(network.blocks)[:4])
        network.classifier = torch.nn.Linear(network.layers()[-1].norm.num_features, 5)
        return network

    def loss(self, network: torch.nn.Module, dtype: torch.dtype) -> Tensor:
        return network(random(3, 3, 5, 7, seed=1).to(dtype)).square().mean()
