"""Fast modules in the place of plain ones: the same Parameters, keys, hooks and results, switched by name and undone.

A fast class is a subclass of a plain one without state of its own, and a module is replaced by giving it that class.
Its forward calls the plain class's where it cannot take a batch.
"""

from collections.abc import Mapping, Sequence
from pkgutil import resolve_name
from typing import Literal

from torch import nn

from src.errors import UserError
from src.gpu.triton_helpers import note

Kernels = Literal["auto", "off"] | Sequence[str]
Replacements = Mapping[str, Mapping[type[nn.Module], str]]  # by name: plain classes, each with its fast "module:Class"


def replace_submodules(network: nn.Module, replacements: Replacements, kernels: Kernels = "auto") -> list[str]:
    """Gives modules of the network their fast classes, those of other names their plain ones; returns the names used.

    Args:
        kernels: auto: every name; off: none, which imports no Triton; or names.

    Raises UserError for a name that there is not.
    """
    wanted = {"auto": list(replacements), "off": []}.get(str(kernels), kernels)
    for name in wanted:
        if name not in replacements:
            names = ", ".join(replacements) or "none"
            raise UserError(f"execution.kernels has {name}; expected auto, off or names of this model's ({names})")
    used = []
    for name, classes in replacements.items():
        for plain, fast in classes.items():
            replaced = [module for module in network.modules() if type(module) is plain or name_of(module) == fast]
            target = (fast_class(fast) if name in wanted and replaced else None) or plain
            for module in replaced:
                module.__class__ = target
            if replaced and target is not plain:
                used.append(name)
    return list(dict.fromkeys(used))


def replace_alike(network: nn.Module, other: nn.Module) -> None:
    """Gives the modules of a network the classes of those of another network of its kind, plain or fast."""
    for module, like in zip(network.modules(), other.modules(), strict=True):
        module.__class__ = like.__class__


def name_of(module: nn.Module) -> str:
    """Returns a module's class as `Replacements` names it."""
    return f"{type(module).__module__}:{type(module).__qualname__}"


def fast_class(name: str) -> type[nn.Module] | None:
    """Returns the fast class; None, which the log says once, where Triton is not installed."""
    try:
        return resolve_name(name)
    except ImportError as error:
        note(f"fast kernels are not available ({error}); plain torch computes the same, more slowly")
        return None
