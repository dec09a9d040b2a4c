"""Any modules as graphs: on a GPU, and on a CPU with calls in the place of graphs."""

import copy
import inspect
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from src.gpu import observed, recorded, triton_helpers
from src.gpu.lifetimes import Plan
from src.gpu.observed import HostNumbers
from src.gpu.recorded import Recorded, record, report


class Block(nn.Module):
    """Reads residue numbers on the host and sends constants, as RFdiffusion's blocks do."""

    def __init__(self) -> None:
        super().__init__()
        self.scale: Tensor
        self.linear, self.drop = nn.Linear(4, 4), nn.Dropout(0.5)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x: Tensor, index: Tensor, scale: float = 1.0, other: Tensor | None = None) -> tuple[Tensor, Any]:
        centers = torch.linspace(0, 1, 4).to(x.device)
        x = self.drop(torch.relu_(self.linear(x))) * scale - centers
        src, dst = torch.where((index[:, None] - index[None]).abs() > 1)
        most = int(index.max())
        x = x.index_add(0, torch.tensor([0], device=x.device), self.scale[None])
        src.add_(1).remainder_(len(x))  # in place: of what was read
        x = x.index_add(0, dst, x[src] / most)
        x[index > 2] *= 0.5
        if other is not None:
            x = x + other.mean(0)
        return x, {"most": most, "double": 2 * x}


class Positive(Block):
    """Has as many rows as its input has positive ones."""

    def forward(self, x: Tensor, index: Tensor, *rest: Any, **others: Any) -> Any:
        out, rest = super().forward(x, index)
        return out[out.sum(1) > 0].sum(0) + out.sin().cos().exp(), rest


class Tower(nn.Module):
    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        for block in self.blocks:
            x, _ = block(x, index)
        return x


def inputs(device: str, seed: int, rows: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 4, generator=generator).to(device), torch.arange(rows, device=device)


def captures(module: nn.Module) -> int:
    forward = module.__dict__["forward"]
    assert isinstance(forward, Recorded)
    return forward.captures


def seeded(module: type[nn.Module] | Any, *arguments: Any) -> Any:
    torch.manual_seed(0)
    return module(*arguments).eval()


def assert_same(network: nn.Module, plain: nn.Module, *arguments: Any, **others: Any) -> None:
    """Calls both, with memory of their own."""
    before = copy.deepcopy((arguments, others))
    result, expected = network(*arguments, **others), plain(*before[0], **before[1])
    assert_close(result, expected, rtol=1e-6, atol=1e-6)
    assert_close(arguments, before[0], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_results_of_changing_inputs_and_weights(device: str, mode: Any) -> None:
    plain, network = seeded(Block).to(device), record(seeded(Block).to(device))
    with mode():
        results = []
        for seed in range(4):
            assert_same(network, plain, *inputs(device, seed))
            results.append(network(*inputs(device, seed))[0])
        assert captures(network) == 1, report(network)
        assert len({float(x.sum()) for x in results}) == 4
        for module in (plain, network):
            module.linear.weight.mul_(-2)
            module.scale.fill_(3)
        assert_same(network, plain, *inputs(device, 5))
        network.load_state_dict({name: 2 * x for name, x in plain.state_dict().items()})
        plain.load_state_dict(network.state_dict())
        assert_same(network, plain, *inputs(device, 6))
        assert captures(network) == 1
    for module in (plain, network):
        module.linear.weight = nn.Parameter(module.linear.weight.detach() * 3)
    with mode():
        for seed in range(3):
            assert_same(network, plain, *inputs(device, seed))
    assert captures(network) == 2


def test_shapes_and_other_arguments_have_graphs_of_their_own(device: str) -> None:
    plain, network = seeded(Block).to(device), record(seeded(Block).to(device))
    with torch.no_grad():
        for seed in range(3):
            x, index = inputs(device, seed)
            assert_same(network, plain, x, index)
            assert_same(network, plain, x, index, scale=2.0)
            assert_same(network, plain, x, index=index, other=x)
            assert_same(network, plain, *inputs(device, seed, rows=5))
            assert_same(network, plain, x.t().contiguous().t(), index)
        assert captures(network) == 5
        for rows in range(7, 12):  # more sizes than are kept
            for seed in range(2):
                assert_same(network, plain, *inputs(device, seed, rows=rows))
        assert 0 < captures(network) <= recorded.MOST


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_modes_see_how_tensors_of_numbers_reach_their_device(mode: Any) -> None:
    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            value = func(*args, **(kwargs or {}))
            if isinstance(value, Tensor) and value.device.type == "meta" and args[0].device.type == "cpu":
                names.append(func.overloadpacket)
            return value

    x = torch.ones(3, device="meta")
    for make in (lambda: torch.tensor([0], device="meta"), lambda: torch.tensor(data=1.0, device="meta"),
                 lambda: torch.as_tensor([1.0], device=x.device), lambda: x.new_tensor([2]),
                 lambda: torch.asarray(obj=[1], device="meta", dtype=torch.int8)):  # fmt: skip
        names: list[Any] = []
        with mode(), HostNumbers(), Names():
            made = make()
        assert made.device.type == "meta" and names[0] in (torch.ops.aten._to_copy, torch.ops.aten.to)
        assert (made.shape, made.dtype) == (make().shape, make().dtype)
    with HostNumbers():
        assert torch.as_tensor(x) is x and torch.tensor([1]).device.type == "cpu"


def test_values_that_the_host_reads_belong_to_the_key(device: str) -> None:
    plain, network = seeded(Block).to(device), record(seeded(Block).to(device))
    x, index = inputs(device, 0)
    with torch.no_grad():
        for step in (1, 1, 2, 2, 1, 2):
            assert_same(network, plain, x, index * step)
        assert captures(network) == 2
        index[3] = 9  # in place
        assert_same(network, plain, x, index)
        network, x = record(seeded(Block).to(device)), inputs(device, 0)[0]
        for step in range(1, 4):  # never twice the same
            assert_same(network, plain, x, inputs(device, 0)[1] * step)
    assert captures(network) == 0 and "values that differ from call to call" in report(network)


def test_the_largest_modules_that_can_are_graphs(device: str) -> None:
    blocks = lambda: [Block(), Positive(), Tower(Block(), Block())]  # noqa: E731
    for make in (lambda: Tower(*blocks()[:1], Block()), lambda: Tower(*blocks()[:2])):
        plain, network = seeded(make).to(device), record(seeded(make).to(device))
        with torch.no_grad():
            for seed in range(4):
                assert_same(network, plain, *inputs(device, seed))
        is_whole = not isinstance(network.blocks[1], Positive)
        assert captures(network) == is_whole
        assert captures(network.blocks[0]) == (not is_whole) and captures(network.blocks[1]) == 0
        text = report(network)
        assert ("Tower: 1 as graphs" in text) == is_whole and len(text.splitlines()) == (2 if is_whole else 3)
    assert "Positive: 1 nonzero waits for the device, for values that depend on more than inputs" in text


class Own(nn.Module):
    """Enough launches around a function."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function: Any = function
        self.kept: Any = torch.zeros(6, 4)

    def forward(self, x: Tensor, *rest: Any) -> Any:
        y = x
        for _ in range(recorded.FEWEST):
            y = y.sin() + 1
        return self.function(self, x, y)


REFUSED: dict[str, tuple[Any, str]] = {
    "in place": (lambda m, x, y: x.add_(1) * y, "add_ changes an input in place"),
    "in place of a view": (lambda m, x, y: x[0].mul_(2) * y, "mul_ changes an input in place"),
    "kept": (lambda m, x, y: m.kept.to(x.device).add_(1) * y if x.is_cuda else m.kept.add_(1) * y, ""),
    "input": (lambda m, x, y: (x, y), "returns an input, or a view of it"),
    "shared": (lambda m, x, y: y.chunk(2), "returns tensors that share memory"),
    "random": (lambda m, x, y: torch.nn.functional.dropout(y, 0.5) * 0 + y, "draws random numbers"),
    "object": (lambda m, x, y: (y, slice(1)), "returns other objects than tensors"),
    "few": (lambda m, x, y: y, ""),
}


@pytest.mark.parametrize("name", REFUSED)
def test_calls_that_a_graph_would_change_run_as_ever(device: str, name: str) -> None:
    function, why = REFUSED[name]
    plain, network = Own(function).eval(), record(Own(function).eval())
    with torch.no_grad():
        for seed in range(3):
            x, _ = inputs(device, seed)
            other = x.clone()
            result, expected = network(x), plain(other)
            if name != "object":
                assert_close(result, expected, rtol=0, atol=0)
            assert_close(x, other, rtol=0, atol=0)
    assert why in report(network) and captures(network) == (name == "few" or (name == "kept" and device == "cuda"))


def test_errors_are_the_modules(device: str) -> None:
    def fails(module: Any, x: Tensor, y: Tensor) -> Tensor:
        if module.kept is None:
            raise ValueError("nothing is kept")
        return y * y

    network = record(Own(fails).eval())
    x = inputs(device, 0)[0]
    with torch.no_grad():
        network.kept = None
        for _ in range(3):
            with pytest.raises(ValueError, match="nothing is kept"):
                network(x)
        assert report(network) == "Own: 1 not called twice alike without gradients"
        network.kept = 1
        network(x)
        network.kept = None
        with pytest.raises(ValueError, match="nothing is kept"):
            network(x)  # is captured
        network.kept = 1
        assert_close(network(x), Own(fails)(x))
        assert report(network) == "Own: 1 nothing is kept"


def test_training_gradients_hooks_and_modes_are_plain(device: str) -> None:
    plain, network = seeded(Block).to(device), record(seeded(Block).to(device))
    x, index = inputs(device, 0)
    for _ in range(3):
        assert network(x, index)[0].requires_grad
    with torch.no_grad():
        network.train().drop.eval()
        for _ in range(3):
            assert_same(network, plain, x, index)
        network.eval()
        calls: list[Any] = []
        handle = network.linear.register_forward_hook(lambda *arguments: calls.append(arguments))
        for _ in range(3):
            assert_same(network, plain, x, index)
        assert len(calls) == 3
        handle.remove()
        network.linear.reprise_graphs = False
        for _ in range(3):
            assert_same(network, plain, x, index)
        del network.linear.reprise_graphs
        assert not network.__dict__["forward"].keys
        many = record(nn.Sequential(nn.Linear(4, 4), *[nn.SiLU() for _ in range(recorded.FEWEST)]).eval().to(device))
        compiled = torch.compile(lambda x: many(x) + 1, backend="eager", fullgraph=True)
        for _ in range(3):
            assert_close(compiled(x), many.__dict__["forward"].__wrapped__(x) + 1)
        assert captures(many) == 0


def test_the_module_stays_as_it_was(device: str) -> None:
    plain, network = seeded(Tower, Block(), Positive()).to(device), seeded(Tower, Block(), Positive()).to(device)
    before = [{**part.__dict__} for part in network.modules()]
    assert record(network) is network and record(network) is network
    assert type(network) is Tower and network.state_dict().keys() == plain.state_dict().keys()
    assert inspect.signature(network.forward) == inspect.signature(plain.forward)
    with torch.no_grad():
        for _ in range(2):
            network(*inputs(device, 0))
        for other in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
            assert other.__dict__["forward"].module is other and captures(other) == captures(other.blocks[0]) == 0
            for seed in range(3):
                assert_same(other, network, *inputs(device, seed))
            assert captures(other.blocks[0]) == 1
    assert record(network, False) is network
    assert [part.__dict__.keys() for part in network.modules()] == [state.keys() for state in before]
    assert report(network) == ""


def test_modules_share_the_memory_of_inputs_and_outputs(device: str) -> None:
    network = record(seeded(Tower, Block(), Block(), Positive(), Block()).to(device))
    with torch.no_grad():
        for seed in range(2):
            network(*inputs(device, seed))
    made = [replay.capture for block in network.blocks if captures(block)
            for key in block.__dict__["forward"].keys.values() for replay in key.replays.values()]  # fmt: skip
    assert len(made) == 3
    for tensors in zip(*([*capture.inputs, *capture.outputs] for capture in made), strict=True):
        assert len({x.data_ptr() for x in tensors}) == 1
    (x, index), (out, *_) = made[0].inputs, made[0].outputs
    assert out.data_ptr() == x.data_ptr() != index.data_ptr()  # of one shape


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])  # the interpreter truncates bfloat16
@pytest.mark.parametrize(("rows", "channels"), [((7, 5), 128), ((3,), 1), ((2, 3), 22), ((33,), 1000), ((1,), 4096)])
def test_layer_norms_are_those_of_float64(
    rows: tuple[int, ...], channels: int, dtype: torch.dtype, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_helpers, "devices", {device})
    monkeypatch.setattr(observed, "launch", counted := Counted())
    norm = nn.LayerNorm(channels).to(device)
    for part in norm.parameters():
        nn.init.normal_(part, 1.0)
    x = torch.randn(*rows, channels, device=device).mul_(3).add_(100).to(dtype)
    weight, bias = (part.detach().to(dtype) for part in norm.parameters())
    arguments = x, [channels], weight, bias, norm.eps
    exact = torch.native_layer_norm(x.double(), [channels], weight.double(), bias.double(), norm.eps)[0]
    with torch.no_grad(), observed.Repeat(torch.device(device), [], Plan([], {})):
        ours = torch.native_layer_norm(*arguments)
    assert counted.calls == (channels <= observed.MOST_CHANNELS)
    theirs = torch.native_layer_norm(*arguments)
    error, their_error = ((x[0].double() - exact).abs().max() for x in (ours, theirs))
    assert error <= 1.5 * their_error + 1e-6 * exact.abs().max()
    assert [x.shape for x in ours] == [x.shape for x in theirs] and ours[0].dtype == dtype
    near = 1e-4 if theirs[1].dtype == torch.float32 else 1e-2  # a CPU's are in the input's dtype, a GPU's in float32
    assert_close(ours[1:], theirs[1:], rtol=near, atol=near, check_dtype=False)


class Counted:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, *arguments: Any, **constants: Any) -> None:
        self.calls += 1
        triton_helpers.launch(*arguments, **constants)


@pytest.mark.gpu
def test_a_failed_capture_leaves_the_device_usable() -> None:
    def waits(module: Any, x: Tensor, y: Tensor) -> Tensor:
        torch.cuda.synchronize()
        return y * 2

    network = record(Tower(Own(waits), Block()).eval().cuda())
    single = Own(waits).eval().cuda()
    record(single)
    x, _ = inputs("cuda", 0)
    with torch.no_grad():
        for _ in range(3):
            assert_close(single(x), Own(waits)(x))
    assert captures(single) == 0 and report(single).startswith("Own: 1 ")
    block, plain = network.blocks[1], copy.deepcopy(network.blocks[1])
    record(plain, False)
    with torch.no_grad():
        for seed in range(3):
            assert_same(block, plain, *inputs("cuda", seed))
    assert captures(block) == 1
