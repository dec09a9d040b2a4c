"""A function's forward and backward pass as two CUDA graphs, for a module inside a training loop that we do not own.

`cuda_graphs.Graphed` captures a whole step. Here the caller's optimiser, loss and loop stay as they are.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from src.gpu.gradient_memory import GradientMemory
from src.gpu.gradient_slots import offer, withdraw
from src.gpu.hooks import SETTING

WARMUP = 3  # calls of a key before its capture: kernels are compiled there
MOST = 16  # captures of a module
devices = {"cuda"}  # where functions are captured: tests add the CPU, and replace `record`

T = TypeVar("T")
Tensors = Sequence[Tensor]
Function = Callable[[Tensors, Tensors], Any]  # of inputs and parameters, to a tensor or a tuple of tensors
Places = tuple[tuple[int, bool], ...]  # of each parameter, its address and whether it needs a gradient


@runtime_checkable
class Graph(Protocol):
    def replay(self) -> None: ...


class Turn:
    """One forward replay, until its backward pass or until nothing can ask for one any more."""


@dataclass
class Pair:
    """The graphs of one key, with the memory that they read and write."""

    forward: Graph
    backward: Graph
    inputs: list[Tensor]
    outs: tuple[Tensor, ...]
    is_tuple: bool
    of_outs: list[Tensor]  # gradients of `outs`
    is_zero: list[bool]  # which of these are zeros
    memory: GradientMemory
    is_used: list[bool]  # which parameters have a gradient


class TrainingGraphs:
    """Calls a function of inputs and parameters; from the call after WARMUP of a key on as CUDA graphs.

    The function must not wait for the device, must read nothing that changes but its tensors and the default generator,
    and gives the inputs no gradients. All captures share one pool of memory, where a forward pass's activations last
    until the next one. So a second forward pass before the first one's backward pass runs eagerly.
    """

    def __init__(self) -> None:
        self.pairs: dict[Hashable, Pair | None] = {}  # None where the device has no room for them
        self.calls: Counter[Hashable] = Counter()
        self.memories: dict[Places, GradientMemory] = {}
        self.static: dict[Hashable, Any] = {}  # memory of the module's that its graphs read
        self.pool: Any = None
        self.stream: Any = None  # of all captures: memory of a pool is reused on its stream alone
        self.replays = 0  # of forward passes
        self.turns = 0  # how often what a backward pass reads was overwritten
        self.last: ref[Turn] | None = None  # the last one, while its backward pass may follow

    def pair_of(
        self, function: Function, inputs: Tensors, parameters: Sequence[nn.Parameter], places: Places, key: Hashable,
        static: Tensors = (),
    ) -> Pair | None:  # fmt: skip
        """Returns the graphs of this key, captured now if it is time; None where the function must run eagerly.

        Args:
            places: `places_of(parameters)`.
            static: inputs after the others that graphs read where they are.
        """
        shapes = tuple((x.shape, x.dtype) for x in inputs), tuple((x.data_ptr(), x.shape) for x in static)
        kind = parameters[0].device.type
        autocast = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
        modes = torch.get_float32_matmul_precision(), autocast
        # Replays read and write the addresses of the capture.
        key = (key, places, shapes, modes)
        if key not in self.pairs:
            self.calls[key] += 1
            if self.calls[key] <= WARMUP or len(self.pairs) == MOST or not any(needs for _, needs in places):
                return None
            try:
                self.pairs[key] = self.capture(function, inputs, parameters, places, static)
            except torch.OutOfMemoryError:  # other memory cannot be reused in the graphs' pool
                self.pairs[key] = None
                if not any(self.pairs.values()):
                    self.pool = None  # that of graphs which are gone is refused
        return self.pairs[key]

    def kept(self, key: Hashable, make: Callable[[], T]) -> T:
        """Returns memory of the module's, made at first use and kept."""
        if key not in self.static:
            self.static[key] = make()
        return self.static[key]

    @property
    def is_waiting(self) -> bool:
        """Returns whether a backward pass may follow that needs the activations of the last forward replay."""
        return self.last is not None and self.last() is not None

    def replay(self, pair: Pair, inputs: Tensors, parameters: Sequence[nn.Parameter]) -> Any:
        """Returns what the function would."""
        outs = Replay.apply(self, pair, inputs, *parameters)
        return outs if pair.is_tuple else outs[0]  # type: ignore[index]

    def capture(
        self, function: Function, inputs: Tensors, parameters: Sequence[nn.Parameter], places: Places, static: Tensors
    ) -> Pair:
        """Records a forward and a backward pass without running them."""
        copies = [x.clone() for x in inputs]
        # Leaves of their own, so that no gradient is added to the parameters' own here.
        leaves = [p.detach().requires_grad_(p.requires_grad) for p in parameters]
        trained = [leaf for leaf in leaves if leaf.requires_grad]
        memory = self.memories.get(places)
        if memory is None:
            memory = self.memories[places] = GradientMemory(parameters)
        slots = [slot for slot in memory.slots if slot is not None]
        values: dict[str, Any] = {}

        def forward() -> tuple[Tensor, ...]:
            values["is_tuple"] = isinstance(out := function([*copies, *static], leaves), tuple)
            values["outs"] = out if values["is_tuple"] else (out,)
            return values["outs"]

        def backward() -> list[bool]:
            offer(dict(zip((p for p in parameters if p.requires_grad), slots, strict=True)))
            try:
                gradients = torch.autograd.grad(values["outs"], trained, of_outs, allow_unused=True)
            finally:
                withdraw(slots)
            pairs = list(zip(slots, gradients, strict=True))
            apart = [pair for pair in pairs if pair[1] is not None and not is_same(*pair)]
            if apart:
                torch._foreach_copy_(*map(list, zip(*apart, strict=True)))  # pyright: ignore
            return [gradient is not None for gradient in gradients]

        kind = parameters[0].device.type
        is_cast, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
        # A weight that autocast keeps would outlive its memory in the pool.
        with torch.enable_grad(), torch.autocast(kind, dtype, is_cast, cache_enabled=False):
            first, outs = record(forward, self)
            of_outs = [torch.zeros_like(out) for out in outs]
            second, with_gradient = record(backward, self)
        of_trained = iter(with_gradient)
        is_used = [leaf.requires_grad and next(of_trained) for leaf in leaves]
        outs = tuple(out.detach() for out in outs)
        return Pair(first, second, copies, outs, values["is_tuple"], of_outs, [True] * len(outs), memory, is_used)


def record(body: Callable[[], T], graphs: TrainingGraphs) -> tuple[Graph, T]:
    """Returns a CUDA graph of what the body launches, and what it returns; its memory is of the pool of `graphs`."""
    graph, graphs.stream = torch.cuda.CUDAGraph(), graphs.stream or torch.cuda.Stream()
    torch.cuda.synchronize()
    # Other threads, such as a loader's that pins memory, may use the device meanwhile.
    with torch.cuda.graph(graph, pool=graphs.pool, stream=graphs.stream, capture_error_mode="thread_local"):
        value = body()
    graphs.pool = graph.pool()
    return graph, value


def is_same(slot: Tensor, gradient: Tensor) -> bool:
    """Returns whether a gradient was written to its slot."""
    return (slot.data_ptr(), slot.stride(), slot.dtype) == (gradient.data_ptr(), gradient.stride(), gradient.dtype)


class Replay(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, graphs: TrainingGraphs, pair: Pair, inputs: Tensors, *parameters: Tensor
    ) -> tuple[Tensor, ...]:
        for static, value in zip(pair.inputs, inputs, strict=True):
            static.copy_(value)
        pair.forward.replay()
        ctx.turn = Turn()
        graphs.last = ref(ctx.turn)
        graphs.replays += 1
        graphs.turns += 1
        ctx.graphs, ctx.pair, ctx.number = graphs, pair, graphs.turns
        ctx.parameters, ctx.version = parameters, version_of(parameters)
        ctx.set_materialize_grads(False)
        return tuple(out.clone() for out in pair.outs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if ctx.number != ctx.graphs.turns:
            raise RuntimeError(
                "the activations of this forward pass were overwritten by a later one, as a backward pass came before; "
                "call accelerate(model, graphs=False)"
            )
        if ctx.version != version_of(ctx.parameters):
            raise RuntimeError("a parameter was changed in place between the forward and the backward pass")
        pair: Pair = ctx.pair
        for number, (static, grad) in enumerate(zip(pair.of_outs, grads, strict=True)):
            if grad is not None:
                static.copy_(grad)
            elif not pair.is_zero[number]:
                static.zero_()
            pair.is_zero[number] = grad is None
        gradients = pair.memory.gradients(pair.backward.replay, pair.is_used)
        ctx.graphs.last = None
        return None, None, None, *gradients


def version_of(parameters: Tensors) -> int:
    """Returns a number that an in-place change of any of them increases."""
    return sum(p._version for p in parameters)


def places_of(parameters: Tensors) -> Places:
    return tuple((p.data_ptr(), p.requires_grad) for p in parameters)


_of_module: WeakKeyDictionary[nn.Module, TrainingGraphs] = WeakKeyDictionary()


def graphs_of(module: nn.Module, like: Tensor) -> TrainingGraphs | None:
    """Returns the graphs of a module that may have them, is trained on the device of `like`, and may replay one."""
    if like.device.type not in devices or not module.training or not getattr(module, SETTING, True):
        return None
    if not torch.is_grad_enabled() or (like.is_cuda and torch.cuda.is_current_stream_capturing()):
        return None
    graphs = _of_module.get(module)
    if graphs is None:
        graphs = _of_module[module] = TrainingGraphs()
    return None if graphs.is_waiting else graphs


def run(
    module: nn.Module, function: Function, inputs: Tensors, parameters: Sequence[nn.Parameter], key: Hashable
) -> Any:
    """Returns the function's value, by the module's graphs where it may have them."""
    graphs = graphs_of(module, inputs[0])
    pair = graphs.pair_of(function, inputs, parameters, places_of(parameters), key) if graphs else None
    return graphs.replay(pair, inputs, parameters) if graphs and pair else function(inputs, parameters)


def forget(module: nn.Module) -> None:
    """Gives the module's graphs and their memory back. Neither copies of a module nor checkpoints have them."""
    _of_module.pop(module, None)
