"""A function without gradients as CUDA graphs, for a module inside a prediction loop that we do not own.

Many modules of one network are called in turn, so all share the memory that their graphs read and write.
"""

import gc
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from src.gpu.hooks import SETTING
from src.gpu.triton_helpers import note

MOST = 6  # captures of a module
Function = Callable[[list[Tensor]], list[Tensor]]


class Input(NamedTuple):
    """A tensor of the function, as the first of `rows` rows; the others get the value `rest`, or any."""

    tensor: Tensor
    rows: int
    rest: int | None = None


@dataclass(frozen=True, eq=False)
class Capture:
    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    outputs: list[Tensor]


class Graphs:
    """The captures of a module, and how often each key was called."""

    def __init__(self) -> None:
        self.captures: dict[Hashable, Capture] = {}
        self.calls: Counter[Hashable] = Counter()
        self.failed = False


_of_module: WeakKeyDictionary[nn.Module, Graphs] = WeakKeyDictionary()
_buffers: WeakValueDictionary[Hashable, Tensor] = WeakValueDictionary()  # which captures keep
_living: dict[tuple[torch.device, int], WeakSet[Capture]] = {}  # captures that share a pool of memory
_streams: dict[torch.device, torch.cuda.Stream] = {}  # of captures: the pool gives memory to the stream that freed it


def can_run(module: nn.Module, tensor: Tensor) -> bool:
    """Returns whether a call may be a graph: on a GPU, without gradients, outside compilation and other captures.

    Neither is it one where a mode observes operators, which a graph hides.
    """
    return (
        tensor.is_cuda
        and not torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and not is_in_torch_dispatch_mode()
        and not torch.cuda.is_current_stream_capturing()
        and getattr(module, SETTING, True)
        and not any(is_hooked(part) for part in parts(module))
    )


def parts(module: nn.Module) -> list[nn.Module]:
    """Returns the module and those inside; `modules()` takes longer, which a short call feels."""
    listed, left = [], [module]
    while left:
        listed.append(left.pop())
        left += [child for child in listed[-1]._modules.values() if child is not None]
    return listed


def is_hooked(module: nn.Module) -> bool:
    state = module.__dict__
    return bool(state["_forward_hooks"] or state["_forward_pre_hooks"] or "forward" in state)


def rounded(rows: int) -> int:
    """Returns a number of rows that is up to 1/8 larger and that fewer sizes of data have."""
    step = 1 << max(0, rows.bit_length() - 4)
    return -(-rows // step) * step


def run(module: nn.Module, function: Function, inputs: Sequence[Input], key: Hashable) -> list[Tensor]:
    """Returns the function's tensors, from the second call of a key on by a graph.

    The function must not wait for the device, and reads nothing that changes but the inputs and the module's parameters
    and buffers, whose addresses are part of the key. `key` has what else it depends on.
    """
    graphs = _of_module.setdefault(module, Graphs())
    place = place_of(inputs[0].tensor.device)
    shapes = tuple((part.rows, part.tensor.shape[1:], part.tensor.dtype) for part in inputs)
    whole = key, shapes, modes(), place, addresses(module)
    static = [buffer(part, (*place, number)) for number, part in enumerate(inputs)]
    copy_all([x[: len(part.tensor)] for part, x in zip(inputs, static, strict=True)], [part.tensor for part in inputs])
    for part, target in zip(inputs, static, strict=True):
        if part.rest is not None and len(part.tensor) < part.rows:
            target[len(part.tensor) :].fill_(part.rest)
    if whole not in graphs.captures:
        graphs.calls[whole] += 1
        if graphs.failed or graphs.calls[whole] == 1 or len(graphs.captures) == MOST:
            return function(static)
        try:
            graphs.captures[whole] = capture(function, static, place)
        except RuntimeError as error:
            graphs.failed = True
            note(f"{type(module).__name__} runs without CUDA graphs: {str(error).splitlines()[0]}")
            return function(static)
    made = graphs.captures[whole]
    made.graph.replay()
    return [output.clone() for output in made.outputs]


def place_of(device: torch.device) -> tuple[torch.device, int]:
    """Returns the device and its current stream: graphs of one place run in turn and share memory."""
    return device, torch.cuda.current_stream(device).cuda_stream


def modes() -> tuple[Hashable, ...]:
    """Returns the settings of torch that choose kernels."""
    return torch.get_float32_matmul_precision(), torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")


def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copies tensors into others of their shapes and dtypes, by one kernel for each dtype."""
    for dtype in {target.dtype for target in targets}:
        pairs = [pair for pair in zip(targets, sources, strict=True) if pair[0].dtype == dtype]
        to, of = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        torch._foreach_copy_(to, of)  # pyright: ignore[reportPrivateImportUsage]


def addresses(module: nn.Module) -> tuple[int, ...]:
    """Returns where the parameters and buffers are: those changed in place are seen by a graph, others are not."""
    tensors = [x for part in parts(module) for x in (*part._parameters.values(), *part._buffers.values())]
    return tuple(tensor.data_ptr() for tensor in tensors if tensor is not None)


@torch.inference_mode(False)
def buffer(part: Input, place: Hashable) -> Tensor:
    """Returns the memory that captures read an input from, which calls of other modules share."""
    key = place, part.rows, part.tensor.shape[1:], part.tensor.dtype
    memory = _buffers.get(key)
    if memory is None:
        memory = _buffers[key] = part.tensor.new_zeros(part.rows, *part.tensor.shape[1:])
    return memory


@torch.inference_mode(False)
def buffers_like(tensors: Sequence[Tensor], place: tuple[torch.device, int]) -> list[Tensor]:
    """Returns such memory for each tensor, of its shape, and of its strides if these give each entry an address."""
    memory, counts = list[Tensor](), Counter[Hashable]()
    for tensor in tensors:
        like = torch.empty_like(tensor, device="meta")
        kind = place, like.shape, like.stride(), like.dtype
        key = *kind, counts[kind]
        counts[kind] += 1
        one = _buffers.get(key)
        if one is None:
            one = _buffers[key] = torch.empty_like(like, device=place[0])
        memory.append(one)
    return memory


def capture(function: Function, static: list[Tensor], place: tuple[torch.device, int]) -> Capture:
    """Records a call without running it."""
    graph = torch.cuda.CUDAGraph()
    if place[0] not in _streams:
        _streams[place[0]] = torch.cuda.Stream(place[0])
    living = _living.setdefault(place, WeakSet())
    one = next(iter(living), None)
    pool = one.graph.pool() if one else torch.cuda.graph_pool_handle()  # that of captures which are gone is refused
    cast = torch.is_autocast_enabled("cuda")
    torch.cuda.synchronize(place[0])
    if one is None:
        torch.cuda.empty_cache()  # a pool does not take what plain calls left in the allocator's cache
    # `torch.cuda.graph` would collect garbage and empty the allocator's cache first, 0.1 s for each of many modules.
    collects = gc.isenabled()
    gc.disable()  # what it frees may wait for the device
    try:
        # A weight that autocast keeps would outlive its memory in the pool.
        with (
            torch.cuda.stream(_streams[place[0]]),
            torch.autocast("cuda", torch.get_autocast_dtype("cuda"), cast, cache_enabled=False),
        ):
            # Other threads, such as a loader's that pins memory, may use the device meanwhile.
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                outputs = function(static)
            except BaseException:
                with suppress(RuntimeError):
                    graph.capture_end()
                raise
            graph.capture_end()
    finally:
        if collects:
            gc.enable()
    made = Capture(graph, static, outputs)
    living.add(made)
    return made
