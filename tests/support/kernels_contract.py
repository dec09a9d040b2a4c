"""The contract of fast modules: what holds for every name of every model's replacements, in Triton's interpreter."""

import os
import pickle
import subprocess
import sys
from abc import ABC, abstractmethod
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from src.errors import UserError
from src.gpu import triton_helpers
from src.gpu.replace import Replacements, name_of, replace_submodules

WITHOUT_TRITON = """
from src.gpu.replace import replace_submodules
network = Contract().network()
replace_submodules(network, Contract.replacements, "off")
Contract().loss(network, torch.float32).backward()
assert not [name for name in sys.modules if name.startswith("src.") and name.endswith("_triton")]
assert "triton" not in sys.modules or "torch._dynamo" in sys.modules  # torch imports it there, for e3nn
"""


class KernelsContract(ABC):
    """Subclass it as `class TestMyKernels(KernelsContract)` and set the model's replacements.

    tolerance: of loss, gradients and a step in float32 against float64, over the largest; where plain torch's own
        errors are larger, five times those.
    rounded: names whose fast modules compute in another order in plain torch, with other rounding, what their kernels
        cannot take.
    without_kernels: names whose fast modules are plain torch alone, for every device, dtype and shape.
    """

    replacements: ClassVar[Replacements]
    tolerance = 2e-4
    rounded: ClassVar[tuple[str, ...]] = ()
    without_kernels: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def network(self) -> nn.Module:
        """Returns a small plain network in training mode, always the same one."""

    @abstractmethod
    def loss(self, network: nn.Module, dtype: torch.dtype) -> Tensor:
        """Returns a loss of the same random batch, which is made of this dtype."""

    @pytest.fixture(autouse=True)
    def interpreted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(triton_helpers, "devices", {"cuda", "cpu"})
        triton_helpers.note.cache_clear()

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "name" in metafunc.fixturenames:
            metafunc.parametrize("name", [*self.replacements])

    def accelerated(self, kernels: Any) -> nn.Module:
        network = self.network()
        replace_submodules(network, self.replacements, kernels)
        return network

    def stepped(self, network: nn.Module, dtype: torch.dtype) -> dict[str, Tensor]:
        """Returns loss, gradients, and weights and statistics after a step of SGD, in float64."""
        loss = self.loss(network, dtype)
        loss.backward()
        values = {"loss": loss.detach()}
        values |= {f"gradient of {k}": p.grad for k, p in network.named_parameters() if p.grad is not None}
        self.take_step(network)
        values |= {f"{name} after": value.clone() for name, value in network.state_dict().items()}
        return {name: value.double() for name, value in values.items()}

    def take_step(self, network: nn.Module) -> None:
        torch.optim.SGD(network.parameters(), lr=0.1).step()

    def assert_near(self, fast: dict[str, Tensor], plain: dict[str, Tensor], exact: dict[str, Tensor]) -> None:
        """Raises AssertionError where the values of fast modules differ more from float64 than `tolerance` allows."""
        assert fast.keys() == plain.keys() == exact.keys()
        for name, value in exact.items():
            size = value.abs().max().clamp_min(1e-3)
            errors = [float((values[name] - value).abs().max() / size) for values in (fast, plain)]
            assert errors[0] < max(self.tolerance, 5 * errors[1]), (name, *errors)

    def test_a_name_changes_classes_alone(self, name: str) -> None:
        plain = self.network()
        before = [*plain.parameters(), *plain.buffers()], [*plain.state_dict()], [*plain.modules()]
        assert replace_submodules(plain, self.replacements, [name]) == [name]
        after = [*plain.parameters(), *plain.buffers()], [*plain.state_dict()], [*plain.modules()]
        assert all(a is b for a, b in zip(before[0], after[0], strict=True)) and before[1] == after[1]
        assert all(a is b for a, b in zip(before[2], after[2], strict=True))
        fast = [module for module in plain.modules() if name_of(module) in self.replacements[name].values()]
        assert fast and all(not vars(type(module)).keys() & {"__init__"} for module in fast)

    @pytest.mark.slow
    def test_loss_gradients_and_step_agree_with_float64(self, name: str) -> None:
        plain, fast = (self.stepped(net, torch.float32) for net in (self.network(), self.accelerated([name])))
        self.assert_near(fast, plain, self.stepped(self.network().double(), torch.float64))

    def test_what_it_cannot_take_is_the_plain_modules(
        self, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(triton_helpers, "devices", {"cuda"})
        dtype, rounding = (torch.float64, 1e-9) if name in self.rounded else (torch.float32, 0.0)
        fast, plain = (self.stepped(net.to(dtype), dtype) for net in (self.accelerated([name]), self.network()))
        torch.testing.assert_close(fast, plain, rtol=rounding, atol=rounding)
        assert (name in self.rounded) == any(not torch.equal(fast[key], plain[key]) for key in plain)
        assert not caplog.messages  # plain torch is expected there

    def test_the_log_says_once_what_its_kernels_cannot_take(self, name: str, caplog: pytest.LogCaptureFixture) -> None:
        network = self.accelerated([name]).double()
        for _ in range(2):
            self.stepped(network, torch.float64)
        lines = [line for line in caplog.messages if line.startswith(f"execution.kernels: {name} does not support ")]
        assert caplog.messages == lines and len(lines) == (name not in self.without_kernels)

    def test_twice_is_once_and_off_undoes_it(self, name: str) -> None:
        network = self.network()
        kinds = [type(module) for module in network.modules()]
        for _ in range(2):
            assert replace_submodules(network, self.replacements, [name]) == [name]
        assert [type(module) for module in network.modules()] != kinds
        assert replace_submodules(network, self.replacements, "off") == []
        assert [type(module) for module in network.modules()] == kinds

    @pytest.mark.slow
    def test_a_copy_and_a_state_dict_are_as_good(self, name: str) -> None:
        network = self.accelerated([name])
        copy, other = deepcopy(network), self.accelerated([name])
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.zero_()
        other.load_state_dict(pickle.loads(pickle.dumps(network.state_dict())))
        first, *others = (self.stepped(net, torch.float32) for net in (network, copy, other))
        assert all(torch.equal(first[key], values[key]) for values in others for key in first)

    @pytest.mark.slow
    def test_its_moving_average_is_the_plain_networks(self, name: str) -> None:
        from tests.support.kernels_averaged import moving_average  # imports Triton, see `test_off_imports_no_triton`

        networks = self.accelerated([name]), self.network(), self.network().double()
        dtypes = torch.float32, torch.float32, torch.float64
        self.assert_near(*(moving_average(self, net, dtype) for net, dtype in zip(networks, dtypes, strict=True)))
        fast, plain, _ = networks
        plain.load_state_dict(fast.state_dict())
        losses = (self.loss(net, torch.float32).detach() for net in (fast, plain))
        torch.testing.assert_close(*losses, rtol=self.tolerance, atol=0)

    @pytest.mark.slow
    def test_ranks_average_the_plain_networks_gradients(self, tmp_path: Path) -> None:
        """In DistributedDataParallel, of each name alone."""
        from tests.support.kernels_averaged import gradients_of_ranks

        plain, exact = (
            {key[12:]: 1.5 * value for key, value in self.stepped(net, dtype).items() if key.startswith("gradient of ")}
            for net, dtype in ((self.network(), torch.float32), (self.network().double(), torch.float64))
        )
        for of_rank in gradients_of_ranks(type(self), tmp_path):
            assert of_rank.keys() == self.replacements.keys()
            for fast in of_rank.values():
                self.assert_near(fast, plain, exact)

    def test_a_name_that_there_is_not_is_refused(self) -> None:
        with pytest.raises(UserError, match=r"^execution\.kernels has nothing; expected auto, off or names of"):
            self.accelerated(["nothing"])

    def test_without_triton_the_plain_modules_stay(self) -> None:
        absent: Replacements = {name: dict.fromkeys(parts, "absent:X") for name, parts in self.replacements.items()}
        network = self.network()
        assert replace_submodules(network, absent) == []
        assert [type(m) for m in network.modules()] == [type(m) for m in self.network().modules()]

    @pytest.mark.slow
    def test_off_imports_no_triton(self) -> None:
        module, test = type(self).__module__, type(self).__name__
        code = f"import sys, torch\nfrom {module} import {test} as Contract\n{WITHOUT_TRITON}"
        subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "TRITON_INTERPRET": "0"})
