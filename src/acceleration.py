"""Fast modules in the place of those of other people's models, and of ours: the same object, parameters and results.

    model = accelerate(AutoModelForSequenceClassification.from_pretrained(...))

A module is replaced by giving it a fast class, a subclass of its own without state (`gpu.replace`). So state_dict,
optimisers and copies are the plain model's, and `restore` undoes it. What a fast module cannot take in a batch it
computes by the plain class: on a CPU everything, hence nothing is refused there.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TypeVar

from torch import nn

from src.errors import UserError
from src.gpu import training_graphs
from src.gpu.hooks import SETTING, hooked
from src.gpu.replace import fast_class, name_of

log = logging.getLogger(__name__)
Model = TypeVar("Model", bound=nn.Module)
MODELS = f"{__name__.rpartition('.')[0]}.models"  # our own networks, each package with its `fast.REPLACEMENTS`

# Plain classes of others, each with its fast one. A fast class has `obstacles(module)`: names below it, with reasons.
OTHERS: Mapping[str, str] = {
    "transformers.models.distilbert.modeling_distilbert:DistilBertModel": (
        f"{MODELS}.distilbert.fast.hugging_face:DistilBertModel"
    ),
    "transformers.models.distilbert.modeling_distilbert:DistilBertForSequenceClassification": (
        f"{MODELS}.distilbert.fast.hugging_face:DistilBertForSequenceClassification"
    ),
    "timm.models.efficientnet:EfficientNet": f"{MODELS}.mobilenet_v1.fast.timm:EfficientNet",
    f"{MODELS}.se3_transformer.network:SE3Transformer": f"{MODELS}.se3_transformer.fast.graphs:GraphedSE3Transformer",
}
# What there are no fast modules for, and why: looked for in the model, to say so by name.
NOT_TAKEN: Mapping[str, str] = {
    "torchrec.models.dlrm:DLRM": (
        "its tables are FBGEMM's, fused with their update already, and torch.compile fuses its layers; "
        "train reprise.models.dlrm instead"
    ),
    "se3_transformer.model.transformer:SE3Transformer": (
        "its modules compute on DGL graphs in another layout; convert its weights with "
        "reprise.models.se3_transformer.from_nvidia and accelerate that"
    ),
    "se3_transformer.model.transformer:SE3TransformerPooled": (
        "its modules compute on DGL graphs in another layout; convert its weights with "
        "reprise.models.se3_transformer.from_nvidia and accelerate that"
    ),
}
TAKEN = (
    "Hugging Face's DistilBERT (DistilBertModel and what contains one), timm's mobilenetv1_*, and networks of "
    "reprise.models"
)


@dataclass(frozen=True)
class Report:
    """What of a model has fast modules.

    replaced: names of modules with their fast classes. kept: names of modules that stay plain, with reasons.
    notes: what else decides whether the kernels run.
    """

    replaced: Mapping[str, str]
    kept: Mapping[str, str]
    notes: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Returns a line for each class that was replaced, each module that was not, and each note."""
        by_class: dict[str, list[str]] = {}
        for name, fast in self.replaced.items():
            by_class.setdefault(fast, []).append(name or "the model")
        replaced = [f"{count_of(names)}: {fast.partition(':')[2]}" for fast, names in by_class.items()]
        return [
            *replaced,
            *(f"{name or 'the model'} stays plain: {why}" for name, why in self.kept.items()),
            *self.notes,
        ]

    def __str__(self) -> str:
        return "\n".join(self.lines())


def accelerate(model: Model, graphs: bool = True) -> Model:
    """Gives the model's modules their fast classes, in place, and logs `explain(model)`; returns the model.

    Args:
        graphs: let a small batch's forward and backward pass in training run as CUDA graphs, whose activations stay
            allocated.

    Raises UserError for a model without a module that there is a fast one for.
    """
    plan, report = planned(model)
    for module, fast in plan:
        if module.__class__ is not fast:
            module.__class__ = fast
        if not graphs:
            setattr(module, SETTING, False)
        elif SETTING in vars(module):
            delattr(module, SETTING)
    for line in report.lines():
        log.info("accelerate: %s", line)
    return model


def restore(model: Model) -> Model:
    """Gives fast modules their plain classes back, in place; returns the model."""
    for module in model.modules():
        if (plain := plain_class(module)) is not None:
            module.__class__ = plain
            training_graphs.forget(module)
            vars(module).pop(SETTING, None)
    return model


def explain(model: nn.Module) -> Report:
    """Returns what `accelerate` replaces, or has replaced, and what stays plain. Raises UserError as it does."""
    return planned(model)[1]


def planned(model: nn.Module) -> tuple[list[tuple[nn.Module, type[nn.Module]]], Report]:
    """Returns the modules to replace with their fast classes, and the report."""
    plan: list[tuple[nn.Module, type[nn.Module]]] = []
    replaced, kept = dict[str, str](), dict[str, str]()
    replacements = own_replacements(model)
    for name, module in model.named_modules():
        plain = plain_class(module) or type(module)
        key = f"{plain.__module__}:{plain.__qualname__}"
        path = OTHERS.get(key) or replacements.get(key)
        if path is None:
            path, why = derived(plain)
            if why:
                kept[name] = why
            continue
        fast = fast_class(path)
        if fast is None:
            kept[name] = "Triton is not installed"
            continue
        reasons = dict(obstacles(fast, name, module))
        if reasons:
            kept.update(reasons)
        else:
            plan.append((module, fast))
            replaced[name] = path
    if not replaced and not kept:
        raise UserError(f"{type(model).__name__} has no module that there is a fast one for; accelerate takes {TAKEN}")
    return plan, Report(replaced, kept, tuple(notes(model)) if replaced else ())


def obstacles(fast: type[nn.Module], name: str, module: nn.Module) -> Iterator[tuple[str, str]]:
    """Yields why a module cannot be replaced, by full names."""
    find: Callable[[nn.Module], Iterator[tuple[str, str]]] | None = getattr(fast, "obstacles", None)
    if find is None:  # ours: its fast class asks for each batch
        return
    for below, why in find(module):
        yield ".".join(part for part in (name, below) if part), why
    for below, part in module.named_modules():
        if below and hooked(part) and not getattr(fast, "calls_parts", False):
            yield ".".join(filter(None, (name, below))), "has hooks or a forward of its own, which would be skipped"


def plain_class(module: nn.Module) -> type[nn.Module] | None:
    """Returns the plain class of a module with a fast one; None if it is plain."""
    kind = type(module)
    fast = name_of(module)
    if fast in OTHERS.values():
        return kind.__mro__[1]
    if kind.__module__.startswith(f"{MODELS}.") and ".fast." in kind.__module__:
        return kind.__mro__[1]
    return None


def own_replacements(model: nn.Module) -> dict[str, str]:
    """Returns the plain and fast classes of those of our networks that the model has, by name."""
    packages = {
        ".".join(type(module).__module__.split(".")[: MODELS.count(".") + 2])
        for module in model.modules()
        if type(module).__module__.startswith(f"{MODELS}.")
    }
    fast_classes: dict[str, str] = {}
    for package in sorted(packages):
        for classes in import_module(f"{package}.fast").REPLACEMENTS.values():
            fast_classes |= {f"{plain.__module__}:{plain.__qualname__}": fast for plain, fast in classes.items()}
    return fast_classes


def derived(kind: type[nn.Module]) -> tuple[None, str | None]:
    """Returns why a module of this class stays plain, if it is one that a reader would expect to be replaced."""
    names = [f"{base.__module__}:{base.__qualname__}" for base in kind.__mro__]
    for name in names:
        if name in NOT_TAKEN:
            return None, NOT_TAKEN[name]
        if name in OTHERS:
            return None, f"{kind.__name__} is a subclass of {name.partition(':')[2]}, whose forward may be another"
    return None, None


def notes(model: nn.Module) -> Iterator[str]:
    """Yields what the kernels still need."""
    parameter = next(model.parameters(), None)
    if parameter is not None and not parameter.is_cuda:
        yield f"on {parameter.device.type} the fast modules compute by plain torch: the kernels need an NVIDIA GPU"


def count_of(names: list[str]) -> str:
    """Returns one name, or the first with how many there are."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


__all__ = ["Report", "accelerate", "explain", "restore"]
