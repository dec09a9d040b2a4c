"""A network's modules as CUDA graphs without gradients: the largest whose calls fit into one, in place.

The first call of a key (shapes, other arguments, modes, weights' addresses) runs as ever and is observed, the second is
captured. Where a module cannot be captured, those inside it are.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, TypeVar
from weakref import ref

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.weak import WeakTensorKeyDictionary

from src.gpu import inference_graphs
from src.gpu.hooks import SETTING
from src.gpu.inference_graphs import MOST, Capture, parts
from src.gpu.lifetimes import Plan
from src.gpu.observed import SIMPLE, HostNumbers, Memo, Observe, Repeat, content

FEWEST = 6  # launches of a call: copies in and out take as long as these
TRIES = 8  # observed calls of a module of which none came again
LARGEST = 1 << 16  # elements of an input whose values are compared
M = TypeVar("M", bound=nn.Module)


class Replay(NamedTuple):
    """A captured call, what it reads beside its inputs, and its outputs, where tensors are without data."""

    capture: Capture
    memos: list[Memo]
    outputs: list[Any]
    structure: Any


class Key:
    """What was observed of calls of one key."""

    def __init__(self, whole: Hashable) -> None:
        self.whole = whole  # shapes, other arguments and modes
        self.guards: list[int] = []  # numbers of inputs whose values a graph has inside
        self.values: Hashable = None  # of these in the observed call
        self.memos: list[Memo] = []
        self.plan = Plan([], {})  # of the memory that a graph frees on the way
        self.outputs: list[Any] = []  # tensors are without data
        self.structure: Any = None  # of the outputs
        self.replays: dict[Hashable, Replay] = {}  # by values


class Recorded:
    """A module's `forward`, as a graph where it can be; belongs to the module's attributes."""

    def __init__(self, module: nn.Module) -> None:
        self._module = ref(module)
        self.keys: dict[Hashable, Key] = {}
        self.refused: dict[Hashable, str] = {}  # shapes and arguments that are not captured, and why
        self.why: str | None = None  # no call is captured
        self.observed = 0  # calls since the last capture
        self.launches = 0

    @property
    def module(self) -> nn.Module:
        module = self._module()
        assert module is not None
        return module

    @property
    def __wrapped__(self) -> Any:
        module = self.module
        return type(module).forward.__get__(module)

    def plain(self, *args: Any, **kwargs: Any) -> Any:
        module = self.module
        return type(module).forward(module, *args, **kwargs)

    def __reduce__(self) -> Any:
        return Recorded, (self.module,)  # a copy, or one that is loaded, observes and captures anew

    @property
    def captures(self) -> int:
        return sum(len(key.replays) for key in self.keys.values())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or self.why or torch.is_grad_enabled() or torch._C._get_tracing_state():
            return self.plain(*args, **kwargs)
        leaves, structure = tree_flatten((args, kwargs))
        tensors = [x for x in leaves if isinstance(x, Tensor)]
        device = next((x.device for x in tensors if can_capture(x.device)), None)
        outer = _get_current_dispatch_mode()
        if device is None or not (outer is None or isinstance(outer, Observe)):
            return self.plain(*args, **kwargs)
        strange = [x for x in leaves if not isinstance(x, SIMPLE) and not is_plain(x)]
        if strange:
            self.why = f"takes a {type(strange[0]).__name__}"
            return self.plain(*args, **kwargs)
        place = inference_graphs.place_of(device)
        shown = tuple(
            (x.shape, x.stride(), x.dtype, x.device) if isinstance(x, Tensor) else (type(x), x) for x in leaves
        )
        whole = structure, shown, inference_graphs.modes(), place
        state = None if whole in self.refused else state_of(self.module)
        if state is None:
            return self.plain(*args, **kwargs)
        key = self.keys.get((whole, state))
        if key is None:
            if self.captures == MOST:  # of other sizes
                self.keys.clear()
            key = Key(whole)
            result = self.observe(key, tensors, device, args, kwargs)
            if not self.why and whole not in self.refused:
                self.keys[whole, state] = key
            return result
        if outer is not None:
            return self.plain(*args, **kwargs)
        values = values_of(tensors, key.guards)
        if values not in key.replays:
            if values != key.values:
                if key.replays and self.captures < MOST:
                    return self.observe(key, tensors, device, args, kwargs)
                if not key.replays:
                    self.refused[whole] = "waits for the device, for values that differ from call to call"
                return self.plain(*args, **kwargs)
            try:
                key.replays[values] = self.capture(key, tensors, leaves, structure, place)
            except Exception as error:  # the plain call raises what is not the capture's
                self.refused[whole] = (str(error).splitlines() or [type(error).__name__])[0]
                return self.plain(*args, **kwargs)
        replay = key.replays[values]
        inference_graphs.copy_all(replay.capture.inputs, tensors_on(device, tensors))
        replay.capture.graph.replay()
        results = iter(replay.capture.outputs)
        outputs = [next(results).clone() if isinstance(x, Tensor) else x for x in replay.outputs]
        return tree_unflatten(outputs, replay.structure)

    def observe(self, key: Key, tensors: list[Tensor], device: torch.device, args: Any, kwargs: Any) -> Any:
        """Runs the call, and decides whether the next one is captured."""
        self.observed += 1
        values = {number: content(x) for number, x in enumerate(tensors) if x.numel() <= LARGEST}
        call = Observe(device, tensors)
        with HostNumbers(call.lifetimes.keep), call:
            result = self.plain(*args, **kwargs)
        outputs, structure = tree_flatten(result)
        call.check_outputs(outputs)
        elsewhere = {number for number, x in enumerate(tensors) if x.device != device}
        guards = sorted({*key.guards, *call.guards, *elsewhere})
        weights = [*self.module.parameters(), *self.module.buffers()]
        self.launches = call.launches
        if call.launches < FEWEST:
            self.why = f"launches fewer than {FEWEST} kernels"
        elif any(x.device != device for x in weights):
            call.refuse("has weights on several devices")
        elif any(tensors[number].numel() > LARGEST for number in guards):
            call.refuse(f"waits for the device, for values of an input of more than {LARGEST} elements")
        elif self.observed > TRIES:
            self.why = "has other arguments in each call"
        if call.why:
            self.refused[key.whole] = call.why
        key.guards, key.memos = guards, call.memos
        key.plan = call.lifetimes.plan(x for x in outputs if isinstance(x, Tensor))
        key.values = tuple(values.get(number) for number in guards)
        key.outputs = [torch.empty_like(x, device="meta") if isinstance(x, Tensor) else x for x in outputs]
        key.structure = structure
        return result

    def capture(
        self, key: Key, tensors: list[Tensor], leaves: list[Any], structure: Any, place: tuple[torch.device, int]
    ) -> Replay:
        """Records a call without running it."""
        device, memos, expected = place[0], key.memos, [x for x in key.outputs if isinstance(x, Tensor)]
        # The outputs are written last, over inputs of their shapes.
        static, results = (inference_graphs.buffers_like(x, place) for x in (tensors_on(device, tensors), expected))

        def function(inputs: list[Tensor]) -> list[Tensor]:
            left = iter(inputs)
            given = [next(left) if isinstance(x, Tensor) and x.device == device else x for x in leaves]
            args, kwargs = tree_unflatten(given, structure)
            with HostNumbers(), Repeat(device, memos, key.plan):
                outputs = tree_flatten(self.plain(*args, **kwargs))[0]
            inference_graphs.copy_all(results, [x for x in outputs if isinstance(x, Tensor)])
            return results

        capture = inference_graphs.capture(function, static, place)
        self.observed = 0
        for part in parts(self.module)[1:]:  # which are called no more
            if isinstance(forward := part.__dict__.get("forward"), Recorded):
                forward.keys.clear()
        return Replay(capture, memos, key.outputs, key.structure)


def can_capture(device: torch.device) -> bool:
    return device.type == "cuda" and not torch.cuda.is_current_stream_capturing()


def is_plain(value: Any) -> bool:
    return type(value) in (Tensor, nn.Parameter) and value.layout == torch.strided


def tensors_on(device: torch.device, tensors: Sequence[Tensor]) -> list[Tensor]:
    return [x for x in tensors if x.device == device]


def state_of(module: nn.Module) -> tuple[int, ...] | None:
    """Returns the addresses of parameters and buffers; None for a module that trains, has hooks or wants no graphs."""
    addresses = []
    for part in parts(module):
        state = part.__dict__
        if state["training"] or state["_forward_hooks"] or state["_forward_pre_hooks"] or not state.get(SETTING, True):
            return None
        if "forward" in state and not isinstance(state["forward"], Recorded):
            return None
        addresses += [x.data_ptr() for x in state["_parameters"].values() if x is not None]
        addresses += [x.data_ptr() for x in state["_buffers"].values() if x is not None]
    return tuple(addresses)


_values: Any = WeakTensorKeyDictionary()  # of tensors whose values were read, with the version they had


def values_of(tensors: list[Tensor], numbers: list[int]) -> Hashable:
    """Returns the values of these tensors; waits for the device unless they are those of the last call."""
    return tuple(read(tensors[number]) for number in numbers)


def read(tensor: Tensor) -> bytes:
    if tensor.is_inference() or tensor.device.type == "cpu":  # whose changes are not counted, or may come from NumPy
        return content(tensor)
    version = tensor._version, tensor.data_ptr()
    last = _values.get(tensor)
    if last is None or last[0] != version:
        last = _values[tensor] = version, content(tensor)
    return last[1]


def record(module: M, on: bool = True, leave: tuple[type[nn.Module], ...] = ()) -> M:
    """Has the module and those inside run as graphs where they can, or no more; returns it.

    Modules of the classes `leave` have graphs of their own: they run as these where no module around them is a graph.
    """
    for part in parts(module):
        if isinstance(part.__dict__.get("forward"), Recorded):
            del part.__dict__["forward"]
    left = [module] if on else []
    while left:
        part = left.pop()
        children = [child for child in part._modules.values() if child is not None]
        is_torchs = type(part).__module__.startswith("torch.nn.") and not isinstance(part, nn.Sequential)
        if isinstance(part, leave):
            continue
        if not is_torchs and not isinstance(part, torch.jit.ScriptModule) and "forward" not in part.__dict__:
            part.__dict__["forward"] = Recorded(part)
        left += children
    return module


def report(module: nn.Module) -> str:
    """Returns a line for each class of modules: how many run as graphs, and why others do not."""
    lines: dict[str, Counter[str]] = defaultdict(Counter)
    launches: Counter[str] = Counter()
    inside = {part for one in parts(module) if is_captured(one) for part in parts(one)[1:]}
    for part in parts(module):
        forward = part.__dict__.get("forward")
        if isinstance(forward, Recorded):
            reasons = [*forward.refused.values()]
            if is_captured(part):
                state = "as graphs"
                launches[type(part).__name__] += forward.launches
            elif part in inside:
                state = "in a graph around them"
            else:
                state = forward.why or (reasons[-1] if reasons else "not called twice alike without gradients")
            lines[type(part).__name__][state] += 1
    return "\n".join(
        f"{name}: {'; '.join(f'{count} {state}' for state, count in states.most_common())}"
        + (f" (about {launches[name]} launches)" if launches[name] else "")
        for name, states in lines.items()
    )


def is_captured(module: nn.Module) -> bool:
    forward = module.__dict__.get("forward")
    return isinstance(forward, Recorded) and forward.captures > 0
