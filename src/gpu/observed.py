"""The operators of a call: which of them a CUDA graph cannot have, and the call without these.

In a graph the host reads no values (`item`, `nonzero`, boolean indices, `cpu()`) and copies none from its own memory.
Values that it reads may depend on a few small inputs alone, as a mask made of residue numbers does. Then `Repeat` gives
the call what an observed call read, which is right as long as these inputs have the same values.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, _get_current_dispatch_mode
from torch.utils._pytree import tree_leaves, tree_map_only

from src.gpu import triton_helpers
from src.gpu.lifetimes import EMPTY, Lifetimes, Plan, Releases, is_opaque, memory
from src.gpu.triton_helpers import launch, package, power_of_2

aten = torch.ops.aten
INDEXED = aten.index, aten.index_put, aten.index_put_
COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
WAITS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
# Kernels that are launched outside torch's operators may fill these: what they hold is taken for unknown.
FILLED = {*EMPTY, "zeros", "zeros_like", "new_zeros"}
OF_NUMBERS = torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor
RAW = Tensor.data_ptr, Tensor.__dlpack__, Tensor.__cuda_array_interface__.__get__  # for kernels that are no operators
NO_KERNEL = {*EMPTY, "view", "_unsafe_view", "detach", "lift_fresh", "device"}
KERNEL = f"{__package__}.layer_norm_triton"
MOST_CHANNELS, ELEMENTS = 1024, 2048  # of a row, and of a program
OUTSIDE = -1  # a source that is no input: weights, buffers, attributes, unknown memory
UNKNOWN = frozenset({OUTSIDE})
_constants: WeakValueDictionary[Any, Tensor] = WeakValueDictionary()  # which memos keep and modules share


class Memo(NamedTuple):
    """What an operator returned that a graph cannot have."""

    operator: Any
    value: Any


@cache
def written(operator: Any) -> tuple[tuple[int, str], ...]:
    """Returns the arguments that an operator changes in place, by number and name."""
    if operator is aten.detach_.default:  # which `torch.tensor` ends with in inference mode
        return ()
    arguments = enumerate(operator._schema.arguments)
    return tuple((i, part.name) for i, part in arguments if part.alias_info is not None and part.alias_info.is_write)


@cache
def is_composite(operator: Any, device: str) -> bool:
    """Returns whether other operators make it up, into which inference mode has not split it."""
    has_kernel, name = torch._C._dispatch_has_kernel_for_dispatch_key, operator.name()
    return operator.namespace == "aten" and has_kernel(name, COMPOSITE) and not has_kernel(name, device.upper())


@cache
def name_of(operator: Any) -> str:
    return operator._schema.name.partition("::")[2]


def call(operator: Any, args: Any, kwargs: Any) -> Any:
    """Calls an operator: LayerNorm of few channels by a kernel of ours, in a third of the time of torch's."""
    is_inside = _get_current_dispatch_mode() is not None  # a mode around this one calls it, and sees the operator
    if operator is aten.native_layer_norm.default and not kwargs and not is_inside and can_normalise(*args):
        with torch._C.DisableTorchFunction():
            return layer_norm(*args)
    return operator(*args, **kwargs)


def can_normalise(x: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float) -> bool:
    factors = [part for part in (weight, bias) if part is not None and part.is_contiguous() and part.device == x.device]
    return (
        x.device.type in triton_helpers.devices
        and x.dtype in triton_helpers.DTYPES
        and len(shape) == 1
        and MOST_CHANNELS >= shape[0] > 0
        and x.numel() > 0
        and x.is_contiguous()
        and len(factors) == 2
        and (not x.is_cuda or torch.cuda.get_device_capability(x.device) >= (8, 0))
        and package(KERNEL) is not None
    )


def layer_norm(x: Tensor, shape: list[int], weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the normalised rows, and the mean and the inverse deviation of each, as torch's operator."""
    out, rows, width = torch.empty_like(x), x.numel() // shape[0], power_of_2(shape[0])
    means, inverses = (x.new_empty(*x.shape[:-1], 1, dtype=torch.float32) for _ in range(2))
    size = max(1, ELEMENTS // width)
    kernel, constants = package(KERNEL), {"CHANNELS": shape[0], "WIDTH": width, "ROWS": size}
    launch(kernel.layer_norm, (-(-rows // size),), x, weight, bias, out, means, inverses, rows, eps, **constants)  # type: ignore[union-attr]
    return out, means, inverses


class HostNumbers(TorchFunctionMode):
    """Makes tensors of numbers in the host's memory first: else torch copies them where no mode sees it.

    Args:
        address: is called with the tensors whose addresses are asked for.
    """

    def __init__(self, address: Callable[[Tensor], None] | None = None) -> None:
        super().__init__()
        self.address = address

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {**(kwargs or {})}
        if self.address is not None and func in RAW:
            self.address(args[0])
        if func not in OF_NUMBERS:
            return func(*args, **kwargs)
        parent, data = (args[0], args[1:]) if func is Tensor.new_tensor else (None, args)
        if any(isinstance(x, Tensor) for x in (*data[:1], kwargs.get("data"), kwargs.get("obj"))):
            return func(*args, **kwargs)
        device = kwargs.pop("device", None) or (torch.get_default_device() if parent is None else parent.device)
        return func(*args, **kwargs, device="cpu").to(device)


class Operators(TorchDispatchMode, ABC):
    """Finds the operators that read values of a device, and those that copy to it from the host's memory."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if is_composite(func, self.device.type):
            with self:
                return func._op_dk(COMPOSITE, *args, **kwargs)
        if func.overloadpacket in INDEXED:
            args = self.indexed(args)
        elif not WAITS.isdisjoint(func.tags) and any(self.has(x) for x in tree_leaves((args, kwargs))):
            return self.read(func, args, kwargs)
        elif func is aten._to_copy.default and kwargs.get("device") is not None:
            target = torch.device(kwargs["device"]).type
            if target != args[0].device.type:
                return (self.send if target == self.device.type else self.read)(func, args, kwargs)
        elif func is aten.copy_.default and args[0].device.type != args[1].device.type:
            if not self.has(args[0]):
                self.refuse("copies into the host's memory")
            else:
                source = self.send(aten._to_copy.default, (args[1],), {"device": self.device})
                args = (args[0], source, *args[2:])
        return self.run(func, args, kwargs)

    def indexed(self, args: Any) -> Any:
        """Returns the arguments with the numbers of the rows that boolean indices choose."""
        tensor, indices, *rest = args
        given = [index for index in indices if index is not None]
        is_mask = [index.dtype in (torch.bool, torch.uint8) and index.dim() > 0 for index in given]
        value = rest[0] if rest else None
        if not self.has(tensor):
            return args
        if value is not None and value.device.type == "cpu" and value.numel() == 1:
            if is_mask == [True] and self.has(given[0]):
                return args  # filled where the mask is, without a wait
            if self.device.type != "cpu":
                rest[0] = self.send(aten._to_copy.default, (value,), {"device": self.device})
        listed: list[Tensor | None] = []
        for index in indices:
            if index is not None and not self.has(index):
                index = self.send(aten._to_copy.default, (index,), {"device": self.device})
            if index is None or index.dtype not in (torch.bool, torch.uint8) or index.dim() == 0:
                listed.append(index)
            else:
                listed += self.read(aten.nonzero.default, (index,), {}).unbind(1)
        return tensor, listed, *rest

    def has(self, value: Any) -> bool:
        """Returns whether this is a tensor on the device."""
        return isinstance(value, Tensor) and value.device.type == self.device.type

    def on_device(self, values: Any) -> list[Tensor]:
        return [x for x in tree_leaves(values) if self.has(x) and (x.layout != torch.strided or x.numel())]

    @abstractmethod
    def read(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Returns what an operator has read of the device."""

    @abstractmethod
    def send(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Returns what an operator has copied to the device from the host's memory."""

    @abstractmethod
    def refuse(self, why: str) -> None:
        """Notes, or raises, why a graph cannot have the call."""

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        return call(func, args, kwargs)


class Observe(Operators):
    """Runs a call, and notes what a graph of it needs.

    Args:
        inputs: the call's tensors. The host may read values that depend on some of these alone.

    Afterwards `why` says what keeps the call out of a graph, None if nothing does; `guards` has the numbers of the
    inputs whose values the host read, directly or not; `memos` has what it read and sent; `lifetimes` when the tensors
    that it made are used last; `launches` is the number of operators with kernels.
    """

    def __init__(self, device: torch.device, inputs: list[Tensor]) -> None:
        super().__init__(device)
        self.why: str | None = None
        self.guards: set[int] = set()
        self.memos: list[Memo] = []
        self.launches = 0
        self.lifetimes = Lifetimes()
        self.stream = stream_of(device)
        self.of_inputs = {memory(x) for x in inputs}
        self.sources: dict[int, set[int]] = {}  # by memory: the inputs that a tensor's values depend on
        for number, tensor in enumerate(inputs):
            if self.has(tensor):
                self.sources.setdefault(memory(tensor), set()).add(number)

    def refuse(self, why: str) -> None:
        self.why = self.why or why
        self.memos.clear()

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        if self.why:
            return func(*args, **kwargs)
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.refuse(f"{name_of(func)} draws random numbers")
        tensors = self.on_device((args, kwargs))
        changed = self.on_device([args[i] if i < len(args) else kwargs.get(name) for i, name in written(func)])
        for tensor in changed:
            if memory(tensor) in self.of_inputs:
                self.refuse(f"{name_of(func)} changes an input in place")
            elif memory(tensor) not in self.sources:
                self.refuse(f"{name_of(func)} changes a weight, a buffer or an attribute in place")
        value = call(func, args, kwargs)
        source = self.source(tensors) if name_of(func) not in FILLED else {*UNKNOWN}
        for tensor in changed:
            self.keep(tensor, self.source([tensor]) | source)
        before = {memory(tensor) for tensor in tensors}
        made = self.on_device(value)
        for tensor in made:
            if memory(tensor) not in before:
                self.keep(tensor, source)
        self.follow(func, tensors, made, changed)
        self.launches += bool(made or changed) and not func.is_view and name_of(func) not in NO_KERNEL
        return value

    def follow(self, func: Any, tensors: list[Tensor], made: list[Tensor], changed: list[Tensor]) -> None:
        """Notes what an operator uses, unless other streams or other memory may use that too."""
        self.lifetimes.note(func, tensors, made, changed)
        others = stream_of(self.device) != self.stream or "c10d" in func.namespace
        if others or any(is_opaque(x) for x in (*tensors, *made)):
            self.lifetimes.is_sure = False

    def read(self, func: Any, args: Any, kwargs: Any) -> Any:
        source = self.source(self.on_device((args, kwargs)))
        if OUTSIDE in source:
            self.refuse(f"{name_of(func)} waits for the device, for values that depend on more than inputs")
        self.guards |= source
        return self.remember(func, args, kwargs, source)

    def send(self, func: Any, args: Any, kwargs: Any) -> Any:
        return self.remember(func, args, kwargs, set())

    def remember(self, func: Any, args: Any, kwargs: Any, source: set[int]) -> Any:
        value = func(*args, **kwargs)
        made = self.on_device(value)
        for tensor in made:
            self.keep(tensor, source)
        self.follow(func, self.on_device((args, kwargs)), made, [])
        if not self.why:
            self.memos.append(Memo(func, tree_map_only(Tensor, constant, value)))
        return value

    def keep(self, tensor: Tensor, source: set[int]) -> None:
        if memory(tensor):
            self.sources[memory(tensor)] = source

    def source(self, tensors: Iterable[Tensor]) -> set[int]:
        return set().union(*(self.sources.get(memory(x), UNKNOWN) for x in tensors))

    def check_outputs(self, outputs: list[Any]) -> None:
        """Refuses what a copy of the outputs would change: tensors that share memory, or that outlive the call."""
        tensors = [x for x in outputs if isinstance(x, Tensor)]
        addresses = [memory(x) for x in tensors]
        if any(not isinstance(x, (Tensor, *SIMPLE)) for x in outputs):
            self.refuse("returns other objects than tensors, numbers and strings")
        elif not all(self.has(x) for x in tensors):
            self.refuse("returns tensors on several devices")
        elif not self.of_inputs.isdisjoint(addresses):
            self.refuse("returns an input, or a view of it")
        elif len({*addresses}) < len(addresses) or not all(x in self.sources for x in addresses):
            self.refuse("returns tensors that share memory, or that outlive the call")


class Repeat(Operators):
    """Runs an observed call with what its memos have in the place of what waits for the device.

    Memory is freed as the plan says.
    """

    def __init__(self, device: torch.device, memos: list[Memo], plan: Plan) -> None:
        super().__init__(device)
        self.left = iter(memos)
        self.releases = Releases(plan)

    def read(self, func: Any, args: Any, kwargs: Any) -> Any:
        memo = next(self.left, None)
        if memo is None or memo.operator is not func:
            raise RuntimeError("its second call runs other operators than its first")
        value = tree_map_only(Tensor, torch.clone, memo.value)  # as the call may change it in place
        self.releases.note(func, self.on_device((args, kwargs)), self.on_device(value), ())
        return value

    send = read

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensors = self.on_device((args, kwargs))
        self.releases.check(tensors)
        value = call(func, args, kwargs)
        self.releases.note(func, tensors, self.on_device(value), ())
        return value

    def refuse(self, why: str) -> None:
        raise RuntimeError(why)


def stream_of(device: torch.device) -> Any:
    return torch.cuda.current_stream(device) if device.type == "cuda" else None


SIMPLE = int, float, bool, str, type(None), torch.dtype, torch.device


@torch.inference_mode(False)
def constant(tensor: Tensor) -> Tensor:
    """Returns a copy that is shared with those of the same values."""
    key = tensor.device, tensor.dtype, tensor.shape, content(tensor)
    with _disable_current_modes():
        copy = _constants.get(key)
        if copy is None:
            copy = _constants[key] = tensor.detach().clone()
        return copy


def content(tensor: Tensor) -> bytes:
    """Returns a tensor's values; waits for its device."""
    with _disable_current_modes():
        return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
