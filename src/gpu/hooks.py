"""What fast modules ask about others: whose own forward must run, who may have CUDA graphs, what is not compiled."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import nn

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
SETTING = "reprise_graphs"  # a module's attribute: whether it may have CUDA graphs
F = TypeVar("F", bound=Callable[..., Any])
QUIET = "output_capturing_hook"  # Hugging Face's, which do nothing unless outputs are asked for


def hooked(module: nn.Module) -> bool:
    """Returns whether the module has hooks, or a forward of its own, that would be skipped."""
    state = module.__dict__
    return "forward" in state or any(
        QUIET not in getattr(hook, "__qualname__", "") for kind in HOOKS for hook in state[kind].values()
    )


class Parts:
    """The modules below a module, listed once and again after one was replaced.

    `modules()` and `parameters()` walk the tree in Python: of DistilBERT's 96 modules that takes as long as launching
    30 kernels, in each call.
    """

    def __init__(self, module: nn.Module) -> None:
        # Not the module itself, which `parts_of` must not keep alive.
        self.below = [part for part in module.modules() if part is not module]
        self.children = children([module, *self.below])

    def is_of(self, module: nn.Module) -> bool:
        """Returns whether these are still the modules below it."""
        now = children([module, *self.below])
        return now == self.children  # modules are equal if they are the same

    def are_plain(self, training: bool) -> bool:
        """Returns whether all are in this mode, and none has hooks or a forward of its own."""
        for part in self.below:
            state = part.__dict__
            if state["training"] is not training or "forward" in state:
                return False
            if state["_forward_hooks"] or state["_forward_pre_hooks"] or state["_backward_hooks"]:
                if hooked(part):
                    return False
            elif state["_backward_pre_hooks"]:
                return False
        return True

    def parameters(self, module: nn.Module) -> list[nn.Parameter]:
        """Returns `list(module.parameters())`."""
        all_parts = (module, *self.below)
        return [*dict.fromkeys(p for part in all_parts for p in part._parameters.values() if p is not None)]


def children(modules: Iterable[nn.Module]) -> list[nn.Module | None]:
    return [child for module in modules for child in module.__dict__["_modules"].values()]


_of_module: WeakKeyDictionary[nn.Module, Parts] = WeakKeyDictionary()


def parts_of(module: nn.Module) -> Parts:
    """Returns the module's parts."""
    parts = _of_module.get(module)
    if parts is None or not parts.is_of(module):
        parts = _of_module[module] = Parts(module)
    return parts


def uncompiled(function: F) -> F:
    """Returns the function as torch.compile leaves it: what decides about graphs and kernels is not traced."""
    return torch.compiler.disable(function)  # type: ignore[return-value]
