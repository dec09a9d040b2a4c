"""The SE(3)-Transformer's fast modules in the place of its plain ones.

Imports no Triton itself: a test of the contract asks.
"""

import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

from src.gpu import triton_helpers
from src.models.se3_transformer import Fiber, SE3TransformerPooled, fast
from tests.support.kernels_contract import KernelsContract
from tests.support.se3_small import random_features, random_graph

IN_FRAMES = """
from src.gpu.replace import replace_submodules
network = Contract().network()
assert replace_submodules(network, Contract.replacements, ["conv", "attention"]) == ["conv", "attention"]
Contract().loss(network, torch.float32).backward()
assert not [name for name in sys.modules if name.startswith("src.") and name.endswith("_triton")]
"""


class TestReplacements(KernelsContract):
    replacements = fast.REPLACEMENTS
    rounded = ("conv",)

    def network(self) -> SE3TransformerPooled:
        torch.manual_seed(0)
        network = SE3TransformerPooled(2, 2, 8, 2, pooling="max")
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        return network

    def loss(self, network: nn.Module, dtype: torch.dtype) -> Tensor:
        graph = random_graph((5, 1, 3), dtype)
        nodes = random_features(Fiber({0: 6}), len(graph.positions), dtype)
        return network(graph, nodes, random_features(Fiber({0: 4}), len(graph.src), dtype)).square().mean()

    @pytest.mark.parametrize("kernels", [["conv", "attention"], "auto"], ids=str)
    @pytest.mark.parametrize("devices", [{"cpu"}, {"cuda"}], ids=["kernels", "plain torch"])
    def test_several_names_agree_with_float64(
        self, kernels: list[str] | str, devices: set[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """`attention` is fast beside `conv` alone."""
        monkeypatch.setattr(triton_helpers, "devices", devices)
        expected = self.stepped(self.network().double(), torch.float64)
        fast = self.stepped(self.accelerated(kernels), torch.float32)
        torch.testing.assert_close(fast, expected, rtol=self.tolerance, atol=self.tolerance)

    @pytest.mark.slow
    def test_frames_in_plain_torch_import_no_kernels(self) -> None:
        """So that they are left where Triton is not installed."""
        module, test = type(self).__module__, type(self).__name__
        code = f"import sys, torch\nfrom {module} import {test} as Contract\n{IN_FRAMES}"
        subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "TRITON_INTERPRET": "0"})
