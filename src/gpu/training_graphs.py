"""A function's forward and backward pass as two CUDA graphs, for a module inside a training loop that we do not own.

`cuda_graphs.Graphed` captures a whole step. Here the caller's optimiser, loss and loop stay as they are.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

WARMUP = 3  # calls of a key before its capture: kernels are compiled there
MOST = 8  # captures of a module

F = TypeVar("F", bound=Callable[..., Any])
Tensors = Sequence[Tensor]
Function = Callable[[Tensors, Tensors], Tensor]  # of inputs and parameters


class Turn:
    """One forward replay, until its backward pass or until nothing can ask for one any more."""


@dataclass(frozen=True)
class Pair:
    """The graphs of one key, with the memory that they read and write."""

    forward: torch.cuda.CUDAGraph
    backward: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    out: Tensor
    gradient: Tensor  # of `out`
    gradients: list[Tensor | None]  # of the parameters


class TrainingGraphs:
    """Calls a function of inputs and parameters; from the call after WARMUP of a key on as CUDA graphs.

    The function must not wait for the device, must read nothing that changes but its tensors and the default generator,
    and gives the inputs no gradients. All captures share one pool of memory, where a forward pass's activations last
    until the next one. So a second forward pass before the first one's backward pass runs eagerly.
    """

    def __init__(self) -> None:
        self.pairs: dict[Hashable, Pair] = {}
        self.calls: Counter[Hashable] = Counter()
        self.replays = 0  # of forward passes
        self.last: ref[Turn] | None = None  # the last one, while its backward pass may follow

    def __call__(
        self, function: Function, inputs: Sequence[Tensor], parameters: Sequence[nn.Parameter], key: Hashable
    ) -> Tensor:
        if not torch.is_grad_enabled() or torch.cuda.is_current_stream_capturing() or self.is_waiting:
            return function(inputs, parameters)
        # Replays read and write the addresses of the capture.
        places = tuple((p.data_ptr(), p.requires_grad) for p in parameters)
        key = (key, places, tuple((x.shape, x.dtype) for x in inputs), torch.get_float32_matmul_precision())
        pair = self.pairs.get(key)
        if pair is None:
            self.calls[key] += 1
            if self.calls[key] <= WARMUP or len(self.pairs) == MOST or not any(p.requires_grad for p in parameters):
                return function(inputs, parameters)
            pair = self.pairs[key] = self.capture(function, inputs, parameters)
        return Replay.apply(self, pair, inputs, *parameters)  # type: ignore[return-value]

    @property
    def is_waiting(self) -> bool:
        """Returns whether a backward pass may follow that needs the activations of the last forward replay."""
        return self.last is not None and self.last() is not None

    def capture(self, function: Function, inputs: Sequence[Tensor], parameters: Sequence[nn.Parameter]) -> Pair:
        """Records a forward and a backward pass without running them."""
        static = [x.clone() for x in inputs]
        # Leaves of their own, so that no gradient is added to the parameters' own here.
        leaves = [p.detach().requires_grad_(p.requires_grad) for p in parameters]
        forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()
        pool = next(iter(self.pairs.values())).forward.pool() if self.pairs else None
        is_cast, dtype = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
        torch.cuda.synchronize()
        # Other threads, such as a loader's that pins memory, may use the device meanwhile.
        modes: dict[str, Any] = {"stream": stream, "capture_error_mode": "thread_local"}
        # A weight that autocast keeps would outlive its memory in the pool.
        with torch.enable_grad(), torch.autocast("cuda", dtype, is_cast, cache_enabled=False):
            with torch.cuda.graph(forward, pool=pool, **modes):
                out = function(static, leaves)
            gradient = torch.empty_like(out)
            trained = [leaf for leaf in leaves if leaf.requires_grad]
            with torch.cuda.graph(backward, pool=forward.pool(), **modes):
                gradients = torch.autograd.grad(out, trained, gradient, allow_unused=True)
        of_trained = iter(gradients)
        of_all = [next(of_trained) if leaf.requires_grad else None for leaf in leaves]
        return Pair(forward, backward, static, out.detach(), gradient, of_all)


class Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, graphs: TrainingGraphs, pair: Pair, inputs: Sequence[Tensor], *parameters: Tensor) -> Tensor:
        for static, value in zip(pair.inputs, inputs, strict=True):
            static.copy_(value)
        pair.forward.replay()
        ctx.turn = Turn()
        graphs.last = ref(ctx.turn)
        graphs.replays += 1
        ctx.graphs, ctx.pair, ctx.number = graphs, pair, graphs.replays
        ctx.layouts = [(p.shape, p.stride(), p.dtype) for p in parameters]
        return pair.out.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.number != ctx.graphs.replays:
            raise RuntimeError(
                "the activations of this forward pass were overwritten by a later one, as a backward pass came before; "
                "call accelerate(model, graphs=False)"
            )
        pair: Pair = ctx.pair
        pair.gradient.copy_(grads[0])
        pair.backward.replay()
        ctx.graphs.last = None
        # Copies in the parameters' layout: autograd keeps these as .grad, and the next replay overwrites its own.
        new = [
            None if gradient is None else torch.empty_strided(shape, stride, dtype=dtype, device=gradient.device)
            for gradient, (shape, stride, dtype) in zip(pair.gradients, ctx.layouts, strict=True)
        ]
        torch._foreach_copy_(  # pyright: ignore[reportPrivateImportUsage]
            [x for x in new if x is not None], [x for x in pair.gradients if x is not None]
        )
        return None, None, None, *new


_of_module: WeakKeyDictionary[nn.Module, TrainingGraphs] = WeakKeyDictionary()
SETTING = "reprise_graphs"  # a module's attribute: whether it may have graphs


def run(
    module: nn.Module, function: Function, inputs: Sequence[Tensor], parameters: Sequence[nn.Parameter], key: Hashable
) -> Tensor:
    """Returns the function's value, by the module's graphs where it may have them and is trained on a GPU."""
    if not inputs[0].is_cuda or not module.training or not getattr(module, SETTING, True):
        return function(inputs, parameters)
    return _of_module.setdefault(module, TrainingGraphs())(function, inputs, parameters, key)


def uncompiled(function: F) -> F:
    """Returns the function as torch.compile leaves it: what decides about graphs and kernels is not traced."""
    return torch.compiler.disable(function)  # type: ignore[return-value]


def forget(module: nn.Module) -> None:
    """Gives the module's graphs and their memory back. Neither copies of a module nor checkpoints have them."""
    _of_module.pop(module, None)
