"""Memory that a graph frees after its last use: of tensors that variables still name."""

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from src.gpu import lifetimes, triton_helpers
from src.gpu.observed import Observe
from src.gpu.recorded import FEWEST, record, report
from tests.dropin.test_recorded import captures

# LayerNorms enlarge what kernel and torch round otherwise; memory with something else in it is farther off.
assert_close = partial(torch.testing.assert_close, rtol=1e-3, atol=1e-3)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifetimes, "LEAST", 1)


class Names(nn.Module):
    """Has a name for each tensor that it makes."""

    def __init__(self, function: Any = lambda module, x, names: names[1] + names[-1]) -> None:
        super().__init__()
        self.function: Any = function
        self.norm = nn.LayerNorm(16)
        self.names: Any = []
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.names = [x.sin()]
        for _ in range(FEWEST):
            self.names.append(self.norm(self.names[-1].cos()))
        return self.function(self, x, self.names)


class Stack(nn.Module):
    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x


def input_of(device: str, seed: int = 0) -> Tensor:
    return torch.randn(8, 16, generator=torch.Generator().manual_seed(seed)).to(device)


def sizes(module: Any) -> list[int]:
    return [x.untyped_storage().nbytes() for x in module.names]


def pair(module: nn.Module, device: str) -> tuple[Any, Any]:
    plain = module.eval().to(device)
    return plain, record(copy.deepcopy(plain))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_tensors_are_freed_after_their_last_use(device: str, mode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, network = pair(Names(), device)
    with mode():
        for seed in range(4):
            assert_close(network(input_of(device, seed)), plain(input_of(device, seed)))
        assert captures(network) == 1 and sizes(network) == [0] * (FEWEST + 1)
        monkeypatch.setattr(lifetimes, "LEAST", 1 << 10)
        plain, network = pair(Names(), device)
        for seed in range(3):
            assert_close(network(input_of(device, seed)), plain(input_of(device, seed)))
    assert captures(network) == 1 and sizes(network) == sizes(plain)  # are smaller than that


def test_tensors_are_freed_in_a_graph_of_several_modules(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_helpers, "devices", {device})  # LayerNorms are a kernel's
    plain, network = pair(Stack(Stack(Names()), Names()), device)
    with torch.no_grad():
        for seed in range(3):
            assert_close(network(input_of(device, seed)), plain(input_of(device, seed)), rtol=1e-3, atol=1e-3)
    assert captures(network) == 1
    for part in (network.parts[0].parts[0], network.parts[1]):
        assert sizes(part) == [0] * (FEWEST + 1)


def test_results_that_are_held_and_given_back_stay(device: str) -> None:
    plain, network = pair(Names(), device)
    with torch.no_grad():
        ours, theirs = [input_of(device)], [input_of(device)]
        for _ in range(6):
            ours.append(network(ours[-1]))
            theirs.append(plain(ours[-2]))  # of the same input: many layers in turn enlarge what is rounded
        assert captures(network) == 1
        ours.append(network(ours[-1][:, :]) + ours[-1])
        theirs.append(plain(ours[-2]) + ours[-2])
    assert_close(ours, theirs)


def test_outputs_that_operators_read_are_not_freed(device: str) -> None:
    plain, network = pair(Names(lambda module, x, names: (names[1], names[2][:4], names[-1] * 2)), device)
    with torch.no_grad():
        for seed in range(3):
            assert_close(network(input_of(device, seed)), plain(input_of(device, seed)))
    assert captures(network) == 1 and [i for i, size in enumerate(sizes(network)) if size] == [1, 2]


def copied(names: list[Tensor], addresses: bool) -> Tensor:
    """Copies a tensor by what is no operator for the modes, as kernels of Triton and of C++ extensions are not."""
    out = torch.empty_like(names[1])
    if addresses:
        names[1].data_ptr()
        out.data_ptr()
    with _disable_current_modes():
        out.copy_(names[1])
    return out * 2


@pytest.mark.parametrize("addresses", [True, False])
def test_what_kernels_outside_torch_use_is_kept(device: str, addresses: bool) -> None:
    plain, network = pair(Names(lambda module, x, names: copied(names, addresses)), device)
    with torch.no_grad():
        for seed in range(3):
            assert_close(network(input_of(device, seed)), plain(input_of(device, seed)))
    assert captures(network) == 1
    kept = [i for i, size in enumerate(sizes(network)) if size]
    assert kept == ([1, FEWEST] if addresses else [*range(FEWEST + 1)])  # the last is read by nothing


def test_a_call_that_reads_freed_tensors_is_refused(device: str) -> None:
    plain, network = pair(Names(lambda module, x, names: names[-1] + names[0 if module.calls > 1 else -1]), device)
    with torch.no_grad():
        for seed in range(4):
            assert_close(network(input_of(device, seed)), plain(input_of(device, seed)))
    assert captures(network) == 0 and "reads tensors that its first did not" in report(network)


def test_other_operators_than_before_free_nothing_more(device: str) -> None:
    def function(module: Any, x: Tensor, names: list[Tensor]) -> Tensor:
        names.append(x[: 8 if module.calls == 1 else 4].exp())
        names.append(names[-1].exp())
        names.append(names[-1].exp())
        return x + names[-1].sum()

    _, network = pair(Names(function), device)
    with torch.no_grad():
        for seed in range(2):
            network(input_of(device, seed))
    assert captures(network) == 1 and sizes(network)[: FEWEST - 1] == [0] * (FEWEST - 1) and all(sizes(network)[-3:])


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_sparse_tensors_keep_what_they_are_made_of() -> None:
    x = torch.rand(3, 3)
    for is_sparse in (False, True):
        with torch.no_grad(), Observe(x.device, [x]) as call:
            left = (
                torch.sparse_coo_tensor(torch.zeros(2, 3, dtype=torch.long), x[0] + 1, (3, 3)) if is_sparse else x + 1
            )
            out = left @ x
        assert call.lifetimes.is_sure == (not is_sparse)
        assert bool(call.lifetimes.plan([out]).freed) == (not is_sparse)


@pytest.mark.gpu
def test_a_capture_needs_less_memory_than_the_plain_call() -> None:
    _, network = pair(Names(), "cuda")
    x = torch.randn(1 << 17, 16, device="cuda")  # 8 MiB
    peaks = []
    with torch.no_grad():
        for _ in range(3):
            network.names = []
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            network(x)
            peaks.append((torch.cuda.max_memory_allocated() - before) >> 23)
    assert captures(network) == 1 and peaks[0] > FEWEST and peaks[1] <= 6 and peaks[2] <= 2, peaks
