"""What a task offers the formats of export.py: its network as a function of tensors, and what is needed to use it."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

Inputs = dict[str, Tensor]
Outputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class TensorGraph:
    """A network as a function of tensors alone, for formats that hold a graph of operations.

    module: takes the tensors of `inputs` by position, in evaluation mode.
    example: returns random inputs of so many samples, and what the task itself returns for them.
    free: the dimensions of each input that may have any size, each with its name.
    outputs: names of what the module returns.
    beside: weights of the network that the graph does not hold; they are written as safetensors.
    longest: the most that a named dimension may have.
    scale: of the outputs, which differences are relative to; None: the greatest value.
    """

    module: nn.Module
    example: Callable[[int], tuple[Inputs, Outputs]]
    free: Mapping[str, Mapping[int, str]]
    outputs: tuple[str, ...]
    beside: Mapping[str, Tensor] = field(default_factory=dict)
    longest: Mapping[str, int] = field(default_factory=dict)
    scale: float | None = None


@dataclass(frozen=True)
class HubFolder:
    """A folder in the layout of another library.

    needs: the package that reads it. write: writes it. difference: reads it with that package and returns the greatest
    difference from the task. command: how it is read. has_our_names: whether its weights have the names of the
    network's state_dict.
    """

    needs: str
    write: Callable[[Path], None]
    difference: Callable[[Path], float]
    command: str
    has_our_names: bool = False


@dataclass(frozen=True)
class Export:
    """What a task can be exported as, beside its weights.

    preprocessing: plain data that is needed to use the network, such as label names.
    refused: formats that it has not, each with the reason.
    pipeline: the Hub's name of what it does; None for what the Hub has no name for.
    """

    preprocessing: dict[str, Any] = field(default_factory=dict)
    graph: TensorGraph | None = None
    hub: HubFolder | None = None
    refused: Mapping[str, str] = field(default_factory=dict)
    pipeline: str | None = None


def difference(actual: Outputs, expected: Outputs, scale: float | None = None) -> float:
    """Returns the greatest difference over `scale`, or over the greatest expected value; infinity for NaN."""
    parts = []
    for a, e in zip(actual, expected, strict=True):
        apart = (a.double() - e.double()).abs().nan_to_num(nan=math.inf).amax().item()
        parts.append(apart / (scale or e.double().abs().amax().item() or 1.0))
    return max(parts)
